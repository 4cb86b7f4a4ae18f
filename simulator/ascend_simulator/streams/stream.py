"""Streams: tasks that run in order on a thread per stream, the table of streams, and host waits.

`Stream.submit` returns immediately. The host must wait to find out whether a task has ended or
failed. Safe from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from time import perf_counter_ns
from typing import Final, Protocol, TypeAlias

from ascend_simulator.codes import Code, FailureMode, OperatorTimeout, Refused
from ascend_simulator.memory.blocks import Ordering
from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.streams.claims import Claims
from ascend_simulator.streams.tasks import (
    Mark,
    Outside,
    Runner,
    SeededRunner,
    Span,
    Task,
    ThreadRunner,
)
from ascend_simulator.violations import Origin, of_task, origin


@dataclass(frozen=True)
class _WaitFor:
    mark: Mark


_Entry: TypeAlias = "tuple[int, Task, Origin] | Mark | _WaitFor | None"


class Owner(Protocol):
    """The part of `Streams` that a stream uses."""

    lock: RLock
    lost: bool

    @property
    def seed(self) -> int | None:
        """The seed if streams have no threads and run in a waiting thread; else None."""

    @property
    def queue(self) -> int:
        """The maximum number of pending tasks of a stream; 0 means no limit."""

    @property
    def ordering(self) -> Ordering:
        """The known order of all tasks."""

    @property
    def claims(self) -> Claims:
        """The memory that tasks use."""

    @property
    def timeline(self) -> deque[Span]:
        """The latest tasks that have a kind; its length is bounded."""

    @property
    def on_task(self) -> Callable[[Span], object] | None:
        """Called with each finished task that has a kind; None if tasks are not recorded."""

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Wait for `mark` and add its knowledge to the host's; False after `timeout_s`."""

    def forget(self, stream: Stream, raised: BaseException | None) -> None:
        """Forget a closed stream; keep the exception of its tasks that was not raised yet."""


class Group:
    """The streams of one context, which stop together after a failure."""

    __slots__ = ("stopped",)

    def __init__(self) -> None:
        self.stopped = False


class Stream:
    """A stream of tasks. Created by `Streams.create`."""

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
        self._passed = 0  # number of the last finished task
        self._mark: Mark | None = None  # the last recorded mark
        self._failure: Refused | None = None
        self._raised: BaseException | None = None
        self.number = number
        self.name = name
        self.failure_mode: FailureMode | None = None
        """None until it is set. With None the stream continues after a failure."""

    # -- called by the host -----------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Queue `task` after all earlier tasks. Never blocks.

        Checks and raises like `Claims.check`. Raises Refused: RT_STREAM_TASK_FULL, and
        RT_STREAM_ABORT after the streams of the context have stopped.
        """
        owner = self._owner
        with owner.lock:
            if self._group.stopped:
                raise Refused(
                    Code.RT_STREAM_ABORT, f"{self.name}: {task.label}: the stream has stopped"
                )
            if owner.queue:
                self._check_room(task.label)
            uses = owner.claims.check(self.number, task)
            number = owner.ordering.submit(self.number)
            for block, use in uses:
                block.uses.add(use, number)
            self._put((number, task, origin()))

    def record(self) -> Mark:
        """Return a mark after all tasks submitted so far."""
        with self._owner.lock:
            mark = Mark(self._owner.ordering.upto(self.number))
            self._mark = mark
            self._put(mark)
        return mark

    def wait_for(self, mark: Mark) -> int:
        """Make all later tasks wait for `mark`; return the number of the wait.

        Raises Refused RT_STREAM_TASK_FULL.
        """
        ordering = self._owner.ordering
        with self._owner.lock:
            if self._owner.queue:
                self._check_room(_NOTHING.label)
            number = ordering.submit(self.number)
            ordering.learn(self.number, mark.knowledge)
            self._put(_WaitFor(mark))
            # When this entry is done, the stream has passed the wait.
            self._put((number, _NOTHING, origin()))
        return number

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Call `wait`, then `report`."""
        self.wait(timeout_s)
        self.report()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all tasks and records submitted so far. Releases the GIL.

        Raises Refused RT_STREAM_SYNC_TIMEOUT after `timeout_s` (None: no limit).
        """
        owner = self._owner
        with owner.lock:
            over = self.is_finished
            if over:
                owner.ordering.observe(owner.ordering.upto(self.number))
        if not over:
            mark = self.record()
            over = owner.wait(mark, timeout_s)
        failure = self._failure
        if isinstance(failure, OperatorTimeout) and timeout_s is not None:
            over = over and failure.limit_s <= timeout_s
        if not over:
            raise Refused(Code.RT_STREAM_SYNC_TIMEOUT, f"{self.name}: not done after {timeout_s} s")

    def report(self) -> None:
        """Raise the first failure since the last report, once.

        The failure is Refused, or another exception of a task. RT_STREAM_ABORT is raised every time
        after the streams of the context have stopped.
        """
        self.rethrow()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._group.stopped:
            raise Refused(Code.RT_STREAM_ABORT, f"{self.name}: stopped after a failed task")

    def remember(self, raised: BaseException) -> None:
        """Store the exception of a callback or task; the next wait raises it."""
        self._raised = self._raised or raised

    def rethrow(self) -> None:
        """Raise the first stored exception of a task, other than Refused, once."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    @property
    def is_idle(self) -> bool:
        """True if the host knows that no task is left."""
        ordering = self._owner.ordering
        return ordering.is_over(self.number, ordering.last(self.number))

    @property
    def is_finished(self) -> bool:
        """True if no task and no mark is left, even if the host has not waited for them."""
        is_done = self._passed == self._owner.ordering.last(self.number)
        return is_done and (self._mark is None or self._mark.done)

    def waits_at(self, number: int) -> bool:
        """Return whether the wait `number` of `wait_for` may still be in progress."""
        return not self._owner.ordering.is_over(self.number, number)

    def close(self) -> None:
        """Run the remaining tasks and end the thread. Drops failures; see `Streams.rethrow`."""
        owner = self._owner
        if not self.is_finished:
            owner.wait(self.record(), None)
        raised, self._raised = self._raised, None
        with owner.lock:
            owner.ordering.drop(self.number)
            owner.forget(self, raised)
            if self._started:
                self._entries.put(None)

    # -- called by runners ------------------------------------------------------------------------

    def work(self) -> None:
        """Run all tasks until `close`, on the stream's own thread."""
        take = self._entries.get
        while (entry := take()) is not None:
            if isinstance(entry, tuple):
                self._perform(entry)
            elif isinstance(entry, Mark):
                entry.pass_()
            else:
                entry.mark.wait(None)

    def is_ready(self) -> bool:
        """Return whether `step` can run an entry. For runners without threads."""
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
        """Run one entry. Call only if `is_ready` is true."""
        entry, self._head = self._head, None
        if isinstance(entry, Mark):
            entry.pass_()
        elif isinstance(entry, tuple):
            self._perform(entry)

    # -- helpers ----------------------------------------------------------------------------------

    def _check_room(self, label: str) -> None:
        owner = self._owner
        if owner.ordering.last(self.number) - self._passed >= owner.queue:
            found = f"the queue is full with {owner.queue} tasks"
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
                on_task = self._owner.on_task
                if on_task is not None:
                    on_task(span)
        self._passed = number

    def _fail(self, failure: Refused) -> None:
        self._failure = self._failure or failure
        if self.failure_mode == FailureMode.ACL_STOP_ON_FAILURE:
            self._group.stopped = True

    def __repr__(self) -> str:
        return f"<{self.name}: {self._passed} task(s) done>"


_NOTHING: Final = Task(lambda: None, (), (), "wait")


class Streams:
    """All streams of the process, and their shared state."""

    def __init__(
        self,
        memory: AddressSpace,
        lock: RLock,
        seed: int | None = None,
        queue: int = 0,
        timeline: int = 0,
    ) -> None:
        """Make an empty table.

        `queue` is the maximum number of pending tasks of a stream; 0 means no limit. `timeline` is
        the number of finished tasks to keep.
        """
        self.lock = lock
        self.seed: Final = seed
        self.queue: Final = queue
        self.timeline: Final[deque[Span]] = deque(maxlen=timeline)
        self.on_task: Callable[[Span], object] | None = None
        """Called with each finished task, from any thread; None if tasks are not recorded."""
        self.ordering: Final = Ordering()
        self.claims: Final = Claims(memory, self.ordering, lock)
        self.lost = False
        """True if queued tasks are no longer run."""
        self._unseen: BaseException | None = None
        self._streams: dict[int, Stream] = {}
        self._numbers = count(1)
        self.outside: Outside = lambda: None
        """Returns a mark that something other than a stream will pass, see `Outside`."""
        self._runner: Runner = (
            ThreadRunner(lambda: self.outside())
            if seed is None
            else SeededRunner(seed, self.alive, lambda: self.outside())
        )

    def create(self, group: Group, name: str) -> Stream:
        """Create a stream without tasks; its thread starts with the first task."""
        with self.lock:
            stream = Stream(self, group, next(self._numbers), name)
            self.ordering.add(stream.number)
            self.claims.names[stream.number] = name
            self._streams[stream.number] = stream
        return stream

    def forget(self, stream: Stream, raised: BaseException | None) -> None:
        """Forget a closed stream; keep the exception of its tasks that was not raised yet."""
        del self._streams[stream.number], self.claims.names[stream.number]
        self._unseen = self._unseen or raised

    def rethrow(self) -> None:
        """Raise an exception, other than Refused, that a closed stream did not raise, once."""
        raised, self._unseen = self._unseen, None
        if raised is not None:
            raise raised

    def drain(self) -> None:
        """Wait until all submitted tasks are done, without adding to the host's knowledge."""
        for stream in self.alive():
            if not stream.is_finished:
                self._runner.wait(stream.record(), None)

    def alive(self) -> Sequence[Stream]:
        """Return the streams, oldest first."""
        return list(self._streams.values())

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Wait for `mark` and add its knowledge to the host's; False after `timeout_s`."""
        if not self._runner.wait(mark, timeout_s):
            return False
        with self.lock:
            self.ordering.observe(mark.knowledge)
        return True

    def poll(self) -> bool:
        """Run one step if streams have no threads; return whether a step ran. Never blocks."""
        return self._runner.poll()

    def is_finished(self, stream: Stream) -> bool:
        """Return whether the stream is finished, which counts as a wait if true. Never blocks."""
        self._runner.poll()
        if stream.is_finished:
            stream.wait()
            return True
        return False

    def is_done(self, mark: Mark) -> bool:
        """Return whether `mark` is passed, which counts as a wait if true. Never blocks."""
        self._runner.poll()
        return mark.done and self.wait(mark, None)
