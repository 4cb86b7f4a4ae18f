"""The memory that tasks and the host use, and the detection of conflicting uses.

A conflict between two streams is detected when the second use is submitted. It depends on the known
order (`memory.blocks`), and not on the timing of the threads: a race is found every time or never.
Safe from any thread.
"""

from __future__ import annotations

from threading import RLock
from typing import Final

from ascend_simulator.memory.blocks import HOST, OWNER, Block, Ordering, Use
from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.streams.tasks import Task
from ascend_simulator.violations import declare, violate

RACE = declare(
    "stream.race",
    "Streams must not use bytes that another stream writes without an event between them.",
)
BUSY = declare("memory.busy", "The host must wait for a stream before it uses the stream's bytes.")
FREE_BUSY = declare(
    "memory.free-while-in-use", "Wait for a stream before freeing memory that it uses."
)


class Claims:
    """The memory that each stream uses. Streams have numbers, and names for messages."""

    def __init__(self, memory: AddressSpace, ordering: Ordering, lock: RLock) -> None:
        self._locate = memory.locate
        self._ordering = ordering
        self._lock = lock
        self.names: Final[dict[int, str]] = {}
        """Names of the existing streams, by number."""

    def check(self, stream: int, task: Task) -> list[tuple[Block, Use]]:
        """Return the memory that `task` uses, before it is submitted to `stream`. Needs the lock.

        Checks RACE. Raises like `AddressSpace.locate` for the task's ranges.
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
                        f"{label}: {self.names[stream]} {use.describe()} of {block!r}: "
                        f"{self._describe(other)}, and nothing orders the two",
                    )
                uses.append((block, use))
        return uses

    def host_access(self, ptr: int, nbytes: int, *, write: bool, what: str) -> None:
        """Check BUSY for an access by the host. Raises like `AddressSpace.locate`."""
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
                f"{what}: the host {use.describe()} of {block!r}: {self._describe(other)}, "
                "and the host has not waited for it",
            )

    def check_idle(self, block: Block, what: str) -> None:
        """Check FREE_BUSY: a block that is freed must not be in use."""
        with self._lock:
            other = block.uses.conflict(self._ordering, Use(OWNER, 0, block.size, True))
        if other is not None:
            found = f"{self._describe(other)}, and the host has not waited for it"
            violate(FREE_BUSY, f"{what}: {block!r}: {found}")

    def _describe(self, use: Use) -> str:
        return f"{self.names[use.stream]} {use.describe()} of it"
