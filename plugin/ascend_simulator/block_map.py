"""Which block an address is in: a sorted map, and what is remembered of blocks that went."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from ascend_simulator.blocks import Block

_REMEMBERED: Final = 4096


class BlockMap:
    """Blocks by address, none overlapping.

    Its lists are replaced, never changed, so that `find` needs no lock. Callers that change it hold
    one.
    """

    def __init__(self) -> None:
        self._map: tuple[list[int], list[Block]] = ([], [])  # starts and blocks, in order
        self._gone: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def find(self, ptr: int) -> Block | None:
        """The block that holds the byte at `ptr`."""
        starts, blocks = self._map
        place = bisect_right(starts, ptr)
        if place:
            block = blocks[place - 1]
            if ptr < block.start + block.size:
                return block
        return None

    def overlapping(self, ptr: int, nbytes: int) -> Block | None:
        """A block that holds one of `nbytes` (1 or more) bytes from `ptr`."""
        starts, blocks = self._map
        place = bisect_right(starts, ptr + nbytes - 1)
        if place and blocks[place - 1].end > ptr:
            return blocks[place - 1]
        return None

    def add(self, block: Block) -> None:
        """`block` is there from now on; it overlaps none."""
        starts, blocks = self._map
        place = bisect_right(starts, block.start)
        self._map = (
            [*starts[:place], block.start, *starts[place:]],
            [*blocks[:place], block, *blocks[place:]],
        )

    def remove(self, block: Block) -> None:
        """`block` is gone, and remembered for a while."""
        starts, blocks = self._map
        place = bisect_right(starts, block.start) - 1
        self._map = (
            [*starts[:place], *starts[place + 1 :]],
            [*blocks[:place], *blocks[place + 1 :]],
        )
        self._gone.append((block.start, block.size))

    def history(self, ptr: int) -> str:
        """What was at `ptr`, in words; '' if nothing is remembered."""
        for start, size in reversed(self._gone):
            if start <= ptr < start + size:
                return f"{size:,} bytes from {start:#x} that were freed"
        return ""

    def all(self) -> list[Block]:
        """The blocks by address."""
        return list(self._map[1])
