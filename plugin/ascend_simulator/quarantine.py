"""Pinned memory that was freed: kept for a while, so that whoever still uses it is found.

Device addresses are never given twice, so a use after free needs no more than the map. Host
addresses come from the host, which gives them again at once; here they are held back and poisoned.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ascend_simulator.blocks import FRESH, Block
from ascend_simulator.violations import declare, violate

FREED = declare("memory.use-after-free", "Memory is not used after it was freed.")

_KEPT_BYTES: Final = 64 * 1024 * 1024
_KEPT: Final = 1024


class Quarantine:
    """The last freed blocks of pinned memory. Callers hold the machine's lock."""

    def __init__(self) -> None:
        self._blocks: deque[Block] = deque()
        self._nbytes = 0

    def add(self, block: Block) -> None:
        """`block` was freed. Violates FREED where one that has to make room was written."""
        block.content.fill(FRESH)
        self._blocks.append(block)
        self._nbytes += block.size
        while self._nbytes > _KEPT_BYTES or len(self._blocks) > _KEPT:
            self._drop()

    def find(self, ptr: int) -> Block | None:
        """The freed block that held the byte at `ptr`."""
        for block in self._blocks:
            if block.start <= ptr < block.end:
                return block
        return None

    def clear(self) -> None:
        """Keep nothing any longer. Violates FREED where something was written."""
        while self._blocks:
            self._drop()

    def _drop(self) -> None:
        block = self._blocks.popleft()
        self._nbytes -= block.size
        if (block.content != FRESH).any():
            violate(FREED, f"{block!r}: found bytes that the host wrote after it was freed")
