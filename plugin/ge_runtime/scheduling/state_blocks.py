"""Blocks of planned memory for growing states, shared by all sequences of a model.

A block holds BLOCK elements along PAST of all growing states of a sequence. A sequence owns as many
blocks as its states need. While it is in the executor's StateGroup, its current states are there.
When it leaves the group, they are written to its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ge_runtime.config.sequence_states import BLOCK
from ge_runtime.engines.growing_states import GrowingState, aligned
from ge_runtime.errors import BlocksTaken
from ge_runtime.specs import PAST, Array

Row: TypeAlias = Sequence[Array]
"""The growing states of one sequence: for each an array with PAST as its first dim."""


class SequenceState(dict[str, Array]):
    """The states of one sequence: a mapping of the fixed states, [1, *dims] by graph input."""

    __slots__ = ("blocks", "live", "row", "saved", "size")

    def __init__(self, fixed: dict[str, Array]) -> None:
        super().__init__(fixed)
        self.size = 0
        """The size of the growing states along PAST."""
        self.saved = 0
        """The number of elements along PAST, from the first on, that the blocks hold."""
        self.blocks: list[int] = []
        self.row: int | None = None
        """The row of the StateGroup with the current states; None if they are in the blocks."""
        self.live = True
        """False after the end of the sequence."""


class BlockPool:
    """The blocks of one model.

    `save` and `load` are for the executor's thread; callers of all other methods hold a lock.
    """

    def __init__(self, states: Sequence[GrowingState], count: int, memory: Array) -> None:
        """Create the pool.

        Args:
            states: The growing states.
            count: The number of blocks.
            memory: uint8 [pool_bytes(states, count)].
        """
        self.count = count
        self._free = list(range(count))
        self._tables: list[Array] = []  # [count, BLOCK, *fixed dims]
        used = 0
        for state in states:
            shape = state.blocks_shape(count)
            table: Array = np.ndarray(shape, state.spec.dtype.numpy, memory, used)
            self._tables.append(np.moveaxis(table, 1 + state.past_at, 1))
            used += aligned(table.nbytes)

    @property
    def used(self) -> int:
        """The number of blocks that sequences own."""
        return self.count - len(self._free)

    def reserve(self, state: SequenceState, size: int) -> None:
        """Give a sequence the blocks for this size along PAST.

        Raises:
            BlocksTaken: Not enough blocks are free. The sequence keeps its blocks.
        """
        more = -(-size // BLOCK) - len(state.blocks)
        if more > len(self._free):
            raise BlocksTaken(
                f"blocks of growing states: found {self.used} of {self.count} in use, expected "
                f"{more} free blocks for {size} elements along '{PAST}'. 'state_blocks' sets their "
                "number"
            )
        for _ in range(more):
            state.blocks.append(self._free.pop())

    def release(self, state: SequenceState) -> None:
        """End a sequence, and take back all its blocks."""
        self._free += state.blocks
        state.blocks = []
        state.live = False

    def save(self, state: SequenceState, row: Row) -> None:
        """Write the elements along PAST that are not in the blocks yet; `row` has all of them."""
        blocks, at, size = state.blocks, state.saved, state.size
        if len(blocks) * BLOCK < size:  # another thread has ended the sequence
            return
        while at < size:
            block, first = blocks[at // BLOCK], at % BLOCK
            count = min(BLOCK - first, size - at)
            for table, own in zip(self._tables, row, strict=True):
                table[block, first : first + count] = own[at : at + count]
            at += count
        state.saved = size

    def load(self, state: SequenceState, row: Row) -> None:
        """Read all elements along PAST into `row`."""
        for place, block in enumerate(state.blocks):
            at = place * BLOCK
            count = min(BLOCK, state.size - at)
            if count <= 0:
                break
            for table, own in zip(self._tables, row, strict=True):
                own[at : at + count] = table[block, :count]
