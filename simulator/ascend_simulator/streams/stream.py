"""A stream: tasks in order, behind the host, on a thread of its own.

`Stream.submit` returns at once; the host learns of a task's end, and of its failure, only by
waiting. Safe from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from time import perf_counter_ns
from typing import Final, Protocol, TypeAlias

from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import FailureMode
from ascend_simulator.memory.ordering import Ordering
from ascend_simulator.origins import Origin, of_task, origin
from ascend_simulator.streams.claims import Claims
from ascend_simulator.streams.tasks import Mark, Span, Task


@dataclass(frozen=True)
class _WaitFor:
    mark: Mark


_Entry: TypeAlias = "tuple[int, Task, Origin] | Mark | _WaitFor | None"


class Owner(Protocol):
    """What a stream is one of: `streams.Streams`."""

    lock: RLock
    lost: bool

    @property
    def seed(self) -> int | None:
        """A number: whoever waits runs the streams, and none has a thread."""

    @property
    def queue(self) -> int:
        """Tasks that a stream takes before one of them is done; 0 is no limit."""

    @property
    def ordering(self) -> Ordering:
        """What is known of the order of all tasks."""

    @property
    def claims(self) -> Claims:
        """What they use."""

    @property
    def timeline(self) -> deque[Span]:
        """The last tasks that ran and have a kind; of how many, is said by its length."""

    @property
    def noted(self) -> Callable[[Span], object] | None:
        """What is told of each of these tasks; None: nobody asks."""

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """The host waits for `mark` and then knows what it knows; False after `timeout_s`."""

    def forget(self, stream: Stream, raised: BaseException | None) -> None:
        """A stream is closed, and nobody saw what its tasks raised."""


class Group:
    """Streams that stop together: those of one context."""

    __slots__ = ("stopped",)

    def __init__(self) -> None:
        self.stopped = False


class Stream:
    """Tasks in order. Made by `Streams.create`."""

    __slots__ = (
        "_entries",
        "_failure",
        "_group",
        "_head",
        "_mark",
        "_owner",
        "_passed",
        "_raised",
        "_started",
        "failure_mode",
        "name",
        "number",
    )

    def __init__(self, owner: Owner, group: Group, number: int, name: str) -> None:
        self._owner = owner
        self._group = group
        self._entries: SimpleQueue[_Entry] = SimpleQueue()
        self._head: _Entry = None
        self._started = False
        self._passed = 0  # number of the last task that is over
        self._mark: Mark | None = None  # of the last record
        self._failure: Refused | None = None
        self._raised: BaseException | None = None
        self.number = number
        self.name = name
        self.failure_mode: FailureMode | None = None
        """None until it is set, which means to go on."""

    # -- for the host -----------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Have `task` done after all that was submitted before. Never blocks.

        Violates and raises what `Claims.check` does. Raises Refused: RT_STREAM_TASK_FULL, and
        RT_STREAM_ABORT once the streams of its context have stopped.
        """
        owner = self._owner
        with owner.lock:
            if self._group.stopped:
                raise Refused(Code.RT_STREAM_ABORT, f"{self.name}: {task.label}: it has stopped")
            if owner.queue:
                self._check_room(task.label)
            uses = owner.claims.check(self.number, task)
            number = owner.ordering.submit(self.number)
            for block, use in uses:
                block.uses.add(use, number)
            self._put((number, task, origin()))

    def record(self) -> Mark:
        """A mark behind all that was submitted so far."""
        with self._owner.lock:
            mark = Mark(self._owner.ordering.upto(self.number))
            self._mark = mark
            self._put(mark)
        return mark

    def wait_for(self, mark: Mark) -> int:
        """All that is submitted from now on comes after `mark`; the number of the wait.

        Raises Refused RT_STREAM_TASK_FULL.
        """
        ordering = self._owner.ordering
        with self._owner.lock:
            if self._owner.queue:
                self._check_room(_NOTHING.label)
            number = ordering.submit(self.number)
            ordering.learn(self.number, mark.knowledge)
            self._put(_WaitFor(mark))
            # Once it is over, the stream has passed the wait.
            self._put((number, _NOTHING, origin()))
        return number

    def synchronize(self, timeout_s: float | None = None) -> None:
        """`wait`, then `report`."""
        self.wait(timeout_s)
        self.report()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all that was submitted and recorded so far. Blocks without the GIL.

        Raises Refused RT_STREAM_SYNC_TIMEOUT after `timeout_s` (None: no limit).
        """
        owner = self._owner
        with owner.lock:
            over = self.is_through
            if over:
                owner.ordering.observe(owner.ordering.upto(self.number))
        if not over:
            mark = self.record()
            if not owner.wait(mark, timeout_s):
                raise Refused(
                    Code.RT_STREAM_SYNC_TIMEOUT, f"{self.name}: not done after {timeout_s} s"
                )

    def report(self) -> None:
        """Raise the first failure since the last report, once.

        It is Refused, or what a task raised beside it; RT_STREAM_ABORT again and again where the
        streams of the context have stopped.
        """
        self.rethrow()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._group.stopped:
            raise Refused(Code.RT_STREAM_ABORT, f"{self.name}: a task failed and it has stopped")

    def remember(self, raised: BaseException) -> None:
        """What a callback of the stream raised is raised at the next wait, as a task's is."""
        self._raised = self._raised or raised

    def rethrow(self) -> None:
        """Raise what a task raised beside Refused since it was raised last, once."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    @property
    def is_idle(self) -> bool:
        """Whether the host knows that nothing is left to do."""
        ordering = self._owner.ordering
        return ordering.is_over(self.number, ordering.last(self.number))

    @property
    def is_through(self) -> bool:
        """Whether nothing is left to do and no mark to pass, which the host need not know."""
        is_done = self._passed == self._owner.ordering.last(self.number)
        return is_done and (self._mark is None or self._mark.done)

    def waits_at(self, number: int) -> bool:
        """Whether the wait `number`, which `wait_for` gave, may still go on, for all one knows."""
        return not self._owner.ordering.is_over(self.number, number)

    def close(self) -> None:
        """Do what is left and end the thread. Failures are dropped; see `Streams.rethrow`."""
        owner = self._owner
        if not self.is_through:
            owner.wait(self.record(), None)
        raised, self._raised = self._raised, None
        with owner.lock:
            owner.ordering.drop(self.number)
            owner.forget(self, raised)
            if self._started:
                self._entries.put(None)

    # -- for what runs it -------------------------------------------------------------------------

    def work(self) -> None:
        """Do all that comes, until `close`. Runs on the stream's own thread."""
        take = self._entries.get
        while (entry := take()) is not None:
            if isinstance(entry, tuple):
                self._perform(entry)
            elif isinstance(entry, Mark):
                entry.pass_()
            else:
                entry.mark.wait(None)

    def is_ready(self) -> bool:
        """Whether `step` can do something. For whoever runs streams without their threads."""
        while True:
            if self._head is None:
                try:
                    self._head = self._entries.get_nowait()
                except Empty:
                    return False
            if not isinstance(self._head, _WaitFor):
                return self._head is not None
            if not self._head.mark.done:
                return False
            self._head = None

    def step(self) -> None:
        """Do one thing; `is_ready` was true."""
        entry, self._head = self._head, None
        if isinstance(entry, Mark):
            entry.pass_()
        elif isinstance(entry, tuple):
            self._perform(entry)

    # -- inside -----------------------------------------------------------------------------------

    def _check_room(self, label: str) -> None:
        owner = self._owner
        if owner.ordering.last(self.number) - self._passed >= owner.queue:
            found = f"found {owner.queue} tasks before it, and no room for more"
            raise Refused(Code.RT_STREAM_TASK_FULL, f"{self.name}: {label}: {found}")

    def _put(self, entry: _Entry) -> None:
        self._entries.put(entry)
        if not self._started and self._owner.seed is None:
            self._started = True
            Thread(target=self.work, name=f"ascend-{self.name}", daemon=True).start()

    def _perform(self, entry: tuple[int, Task, Origin]) -> None:
        number, task, submitted = entry
        if not (self._group.stopped or self._owner.lost):
            begin_ns = perf_counter_ns()
            try:
                with of_task(submitted):
                    task.run()
            except Refused as failure:
                self._fail(failure)
            except BaseException as raised:
                self.remember(raised)
            if task.kind:
                span = Span(self.name, task.kind, task.label, begin_ns, perf_counter_ns())
                self._owner.timeline.append(span)
                noted = self._owner.noted
                if noted is not None:
                    noted(span)
        self._passed = number

    def _fail(self, failure: Refused) -> None:
        self._failure = self._failure or failure
        if self.failure_mode == FailureMode.ACL_STOP_ON_FAILURE:
            self._group.stopped = True

    def __repr__(self) -> str:
        return f"<{self.name}: {self._passed} task(s) done>"


_NOTHING: Final = Task(lambda: None, (), (), "wait")
