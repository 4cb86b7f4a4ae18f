from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.ascend.slots import layout

BYTES = st.lists(st.integers(0, 10_000), min_size=1, max_size=20)


@given(BYTES)
def test_parts_of_a_block_are_aligned_and_as_far_apart_as_blocks_of_their_own(sizes):
    offsets, total = layout(sizes)
    assert all(offset % 64 == 0 for offset in offsets)
    taken = [-(-nbytes // 32) * 32 + 32 for nbytes in sizes]
    for (start, nbytes), (following, _) in pairwise(
        [*zip(offsets, taken, strict=True), (total, 0)]
    ):
        assert start + nbytes <= following


@given(BYTES)
def test_no_more_is_taken_than_alignment_asks_for(sizes):
    assert layout(sizes)[1] <= sum(sizes) + len(sizes) * (31 + 32 + 63)
