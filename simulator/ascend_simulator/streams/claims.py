"""The memory that tasks and the host use, and the check that something orders conflicting uses.

What two streams may touch at the same time is decided when the second is submitted, by what is
known of their order (`ordering`), not by how their threads happen to run: a race is found each time
or never. Safe from any thread.
"""

from __future__ import annotations

from threading import RLock
from typing import Final

from ascend_simulator.memory.blocks import Block
from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.memory.ordering import HOST, OWNER, Ordering, Use
from ascend_simulator.streams.tasks import Task
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


class Claims:
    """What is in use by whom. Streams have numbers, and names for people."""

    def __init__(self, memory: AddressSpace, ordering: Ordering, lock: RLock) -> None:
        self._locate = memory.locate
        self._ordering = ordering
        self._lock = lock
        self.names: Final[dict[int, str]] = {}
        """Of the streams that live, by number."""

    def check(self, stream: int, task: Task) -> list[tuple[Block, Use]]:
        """What `task` would use, submitted to `stream` now. Callers hold the lock.

        Violates RACE. Raises what `AddressSpace.locate` raises for its ranges.
        """
        locate, ordering, label = self._locate, self._ordering, task.label
        uses: list[tuple[Block, Use]] = []
        for ranges, write in ((task.reads, False), (task.writes, True)):
            for ptr, nbytes in ranges:
                block = locate(ptr, nbytes, want="any", what=label)
                if block is None or nbytes == 0:
                    continue
                first = ptr - block.start
                block.writes += write
                use = Use(stream, first, first + nbytes, write)
                other = block.uses.conflict(ordering, use)
                if other is not None:
                    violate(
                        RACE,
                        f"{label}: {self.names[stream]} {use.in_words()} of {block!r}: "
                        f"{self._in_words(other)}, and nothing orders the two",
                    )
                uses.append((block, use))
        return uses

    def host_access(self, ptr: int, nbytes: int, *, write: bool, what: str) -> None:
        """The host touches bytes now. Violates BUSY; raises what `AddressSpace.locate` raises."""
        block = self._locate(ptr, nbytes, want="any", what=what)
        if block is None or nbytes == 0:
            return
        first = ptr - block.start
        use = Use(HOST, first, first + nbytes, write)
        with self._lock:
            block.writes += write
            other = block.uses.conflict(self._ordering, use)
        if other is not None:
            violate(
                BUSY,
                f"{what}: the host {use.in_words()} of {block!r}: {self._in_words(other)}, and it "
                "has not waited",
            )

    def check_idle(self, block: Block, what: str) -> None:
        """The block is about to go. Violates FREE_BUSY."""
        with self._lock:
            other = block.uses.conflict(self._ordering, Use(OWNER, 0, block.size, True))
        if other is not None:
            found = f"{self._in_words(other)}, and nobody has waited"
            violate(FREE_BUSY, f"{what}: {block!r}: {found}")

    def _in_words(self, use: Use) -> str:
        return f"{self.names[use.stream]} {use.in_words()} of it"
