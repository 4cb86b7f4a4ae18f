"""Workspaces: garbage after every execution, all of them, without writing it each time anew."""

from __future__ import annotations

from typing import Final

from ascend_simulator.blocks import Block

PATTERN: Final = 0xB7
"""Fills a workspace, and outputs of an execution that failed."""


class Workspace:
    """A block of memory that models have as workspace, or a part of it.

    Filling some hundred MiB takes longer than a small execution. Whoever looks finds the pattern
    all the same: what was filled is filled again only if somebody may have written since.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._own = 0
        self._filled = (0, 0)
        self._others = -1

    def others(self) -> int:
        """How often others than executions wrote so far. Callers hold the machine's lock."""
        return self._block.writes - self._own

    def submitted(self) -> None:
        """An execution that fills it was submitted. Callers hold the machine's lock."""
        self._own += 1

    def fill(self, ptr: int, nbytes: int, others: int) -> None:
        """The execution runs before which there were `others`: these bytes hold the pattern now."""
        first = ptr - self._block.start
        end = first + nbytes
        if others == self._others and self._filled[0] <= first and end <= self._filled[1]:
            return
        self._block.content[first:end].fill(PATTERN)
        self._filled, self._others = (first, end), others
