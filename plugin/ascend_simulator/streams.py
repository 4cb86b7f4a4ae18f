"""Streams: tasks in order, behind the host, on a thread of each stream's own.

`Stream.submit` returns at once; the host learns of a task's end, and of its failure, only by
waiting. What two streams may touch at the same time is decided when the second is submitted, by
what is known of their order (`ordering`), not by how their threads happen to run: a race is found
each time or never. Safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import Final, TypeAlias

from ascend_simulator.blocks import Block
from ascend_simulator.codes import Code, FailureMode, Refused
from ascend_simulator.memory import AddressSpace
from ascend_simulator.ordering import HOST, Ordering, Range, Use
from ascend_simulator.runners import Behind, Runner, Seeded
from ascend_simulator.tasks import Mark, Task
from ascend_simulator.violations import declare, violate

RACE = declare(
    "stream.race",
    "Bytes that a stream writes are touched by no other stream without an event between them.",
)
BUSY = declare(
    "memory.busy", "The host touches bytes that a stream uses only after it has waited for it."
)
FREE_BUSY = declare(
    "memory.free-while-in-use", "Memory that a stream uses is freed only after waiting for it."
)


@dataclass(frozen=True)
class _WaitFor:
    mark: Mark


_Entry: TypeAlias = "tuple[int, Task] | Mark | _WaitFor | None"


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
        "_owner",
        "_passed",
        "_raised",
        "_started",
        "failure_mode",
        "name",
        "number",
    )

    def __init__(self, owner: Streams, group: Group, number: int, name: str) -> None:
        self._owner = owner
        self._group = group
        self._entries: SimpleQueue[_Entry] = SimpleQueue()
        self._head: _Entry = None
        self._started = False
        self._passed = 0  # number of the last task that is over
        self._failure: Refused | None = None
        self._raised: BaseException | None = None
        self.number = number
        self.name = name
        self.failure_mode: FailureMode | None = None
        """None until it is set, which means to go on."""

    # -- for the host -----------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Have `task` done after all that was submitted before. Never blocks.

        Violates RACE. Raises what `AddressSpace.locate` raises for its ranges, and Refused
        RT_STREAM_ABORT once the streams of its context have stopped.
        """
        owner = self._owner
        with owner.lock:
            if self._group.stopped:
                raise Refused(Code.RT_STREAM_ABORT, f"{self.name}: {task.label}: it has stopped")
            uses: list[tuple[Block, Use]] = []
            self._add_uses(uses, task.reads, False, task.label)
            self._add_uses(uses, task.writes, True, task.label)
            number = owner.ordering.submit(self.number)
            for block, use in uses:
                block.uses.add(use, number)
            self._put((number, task))

    def record(self) -> Mark:
        """A mark behind all that was submitted so far."""
        with self._owner.lock:
            mark = Mark(self._owner.ordering.upto(self.number))
            self._put(mark)
        return mark

    def wait_for(self, mark: Mark) -> int:
        """All that is submitted from now on comes after `mark`; the number of the wait."""
        ordering = self._owner.ordering
        with self._owner.lock:
            number = ordering.submit(self.number)
            ordering.learn(self.number, mark.knowledge)
            self._put(_WaitFor(mark))
            self._put((number, _NOTHING))
        return number

    def synchronize(self, timeout_s: float | None = None) -> None:
        """`wait`, then `report`."""
        self.wait(timeout_s)
        self.report()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all that was submitted so far. Blocks without the GIL.

        Raises Refused RT_STREAM_SYNC_TIMEOUT after `timeout_s` (None: no limit).
        """
        owner = self._owner
        with owner.lock:
            last = owner.ordering.last(self.number)
            over = self._passed == last
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

    def waits_at(self, number: int) -> bool:
        """Whether the wait `number`, which `wait_for` gave, may still go on, for all one knows."""
        return not self._owner.ordering.is_over(self.number, number)

    def close(self) -> None:
        """Do what is left and end the thread. Failures are dropped; see `Streams.rethrow`."""
        owner = self._owner
        if self._passed != owner.ordering.last(self.number):
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

    def _add_uses(
        self, uses: list[tuple[Block, Use]], ranges: Sequence[Range], write: bool, label: str
    ) -> None:
        owner = self._owner
        locate, ordering, number = owner.memory.locate, owner.ordering, self.number
        for ptr, nbytes in ranges:
            block = locate(ptr, nbytes, want="any", what=label)
            if block is None or nbytes == 0:
                continue
            first = ptr - block.start
            block.writes += write
            use = Use(number, first, first + nbytes, write)
            other = block.uses.conflict(ordering, use)
            if other is not None:
                violate(
                    RACE,
                    f"{label}: {self.name} {use.in_words()} of {block!r}: "
                    f"{owner.describe(other)}, and nothing orders the two",
                )
            uses.append((block, use))

    def _put(self, entry: _Entry) -> None:
        self._entries.put(entry)
        if not self._started and self._owner.seed is None:
            self._started = True
            Thread(target=self.work, name=f"ascend-{self.name}", daemon=True).start()

    def _perform(self, entry: tuple[int, Task]) -> None:
        number, task = entry
        if not (self._group.stopped or self._owner.lost):
            try:
                task.run()
            except Refused as failure:
                self._fail(failure)
            except BaseException as raised:
                self._raised = self._raised or raised
        self._passed = number

    def _fail(self, failure: Refused) -> None:
        self._failure = self._failure or failure
        if self.failure_mode == FailureMode.ACL_STOP_ON_FAILURE:
            self._group.stopped = True

    def __repr__(self) -> str:
        return f"<{self.name}: {self._passed} task(s) done>"


_NOTHING: Final = Task(lambda: None, (), (), "wait")


class Streams:
    """All streams of the process, and what they know of each other."""

    def __init__(self, memory: AddressSpace, lock: RLock, seed: int | None) -> None:
        self.memory: Final = memory
        self.lock = lock
        self.seed: Final = seed
        self.ordering: Final = Ordering()
        self.lost = False
        """Once true, nothing queued is done any more."""
        self._unseen: BaseException | None = None
        self._streams: dict[int, Stream] = {}
        self._numbers = count(1)
        self._runner: Runner = Behind() if seed is None else Seeded(seed, self.alive)

    def create(self, group: Group, name: str) -> Stream:
        """A stream without tasks; its thread starts with the first."""
        with self.lock:
            stream = Stream(self, group, next(self._numbers), name)
            self.ordering.add(stream.number)
            self._streams[stream.number] = stream
        return stream

    def forget(self, stream: Stream, raised: BaseException | None) -> None:
        """A stream is closed, and nobody saw what its tasks raised."""
        del self._streams[stream.number]
        self._unseen = self._unseen or raised

    def rethrow(self) -> None:
        """Raise what a task of a closed stream raised beside Refused and nobody saw, once."""
        raised, self._unseen = self._unseen, None
        if raised is not None:
            raise raised

    def alive(self) -> Sequence[Stream]:
        """The streams, oldest first."""
        return list(self._streams.values())

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """The host waits for `mark` and then knows what it knows; False after `timeout_s`."""
        if not self._runner.wait(mark, timeout_s):
            return False
        with self.lock:
            self.ordering.observe(mark.knowledge)
        return True

    def is_done(self, mark: Mark) -> bool:
        """Whether `mark` is passed; if so the host then knows what it knows. Never blocks."""
        self._runner.look()
        return mark.done and self.wait(mark, None)

    def host_access(self, ptr: int, nbytes: int, *, write: bool, what: str) -> None:
        """The host touches bytes now. Violates BUSY; raises what `AddressSpace.locate` raises."""
        block = self.memory.locate(ptr, nbytes, want="any", what=what)
        if block is None or nbytes == 0:
            return
        first = ptr - block.start
        use = Use(HOST, first, first + nbytes, write)
        with self.lock:
            block.writes += write
            other = block.uses.conflict(self.ordering, use)
        if other is not None:
            violate(
                BUSY,
                f"{what}: the host {use.in_words()} of {block!r}: {self.describe(other)}, and it "
                "has not waited",
            )

    def check_idle(self, block: Block, what: str) -> None:
        """The block is about to go. Violates FREE_BUSY."""
        with self.lock:
            other = block.uses.conflict(self.ordering, Use(HOST, 0, block.size, True))
        if other is not None:
            violate(FREE_BUSY, f"{what}: {block!r}: {self.describe(other)}, and nobody has waited")

    def describe(self, use: Use) -> str:
        """A use of a stream in words."""
        return f"{self._streams[use.stream].name} {use.in_words()} of it"
