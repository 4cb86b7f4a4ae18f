"""The allocator of shared memory: no two blocks overlap, and nothing is lost."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reference_server.backends.process_host.memory import ALIGNMENT, BlockAllocator

LIMIT = 20 * ALIGNMENT


class Machine(RuleBasedStateMachine):
    """Takes and gives back at random, and keeps the books in the simplest way."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockAllocator(LIMIT)
        self.taken: dict[int, int] = {}

    def free_spans(self) -> list[tuple[int, int]]:
        spans, begin = [], 0
        for offset, size in sorted(self.taken.items()):
            if offset > begin:
                spans.append((begin, offset))
            begin = offset + -(-size // ALIGNMENT) * ALIGNMENT
        return [*spans, (begin, LIMIT)] if begin < LIMIT else spans

    @rule(size=st.integers(1, LIMIT + 1))
    def take(self, size: int) -> None:
        fitting = [begin for begin, end in self.free_spans() if end - begin >= size]
        offset = self.blocks.take(size)
        assert offset == (fitting[0] if fitting else None)
        if offset is not None:
            self.taken[offset] = size

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.taken:
            offset = data.draw(st.sampled_from(sorted(self.taken)))
            del self.taken[offset]
            self.blocks.give_back(offset)

    @invariant()
    def blocks_are_aligned_and_counted(self) -> None:
        assert all(offset % ALIGNMENT == 0 for offset in self.taken)
        assert self.blocks.used == LIMIT - sum(end - begin for begin, end in self.free_spans())
        assert self.blocks.is_unused == (not self.taken)


TestBlocks = Machine.TestCase


def test_what_is_given_back_makes_room_for_one_large_block():
    blocks = BlockAllocator(4 * ALIGNMENT)
    offsets = [blocks.take(1) for _ in range(4)]
    assert blocks.take(1) is None
    for offset in (offsets[2], offsets[0], offsets[3], offsets[1]):
        blocks.give_back(offset)
    assert blocks.take(4 * ALIGNMENT) == 0


def test_a_block_that_was_not_taken_cannot_be_given_back():
    blocks = BlockAllocator(LIMIT)
    offset = blocks.take(5)
    with pytest.raises(KeyError):
        blocks.give_back(offset + ALIGNMENT)
    assert repr(blocks) == f"BlockAllocator(1 taken, 64 of {LIMIT} bytes, 1 free spans)"
