"""Blocks of an arena that a library takes and gives back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.npu.driver.ge_session_executor import ALIGNMENT, ArenaPool

START, BYTES = 0x10040, 1 << 16


@pytest.mark.brute_force
@given(st.lists(st.integers(0, 9000) | st.none(), max_size=60), st.randoms())
def test_blocks_are_aligned_inside_the_arena_and_apart(steps, random):
    pool = ArenaPool(START, BYTES)
    blocks = {}
    for nbytes in steps:
        if nbytes is None and blocks:
            address = random.choice([*blocks])
            pool.free(address)
            del blocks[address]
        elif nbytes is not None:
            try:
                address = pool.allocate(nbytes)
            except MemoryError:
                continue
            assert address % ALIGNMENT == 0
            # What operators use of a part of a block: its bytes rounded up to 32, and 32 more.
            end = address + -(-max(1, nbytes) // 32) * 32 + 32
            assert START <= address < end <= START + BYTES
            assert all(end <= other or its <= address for other, its in blocks.items())
            blocks[address] = end
    for address in blocks:
        pool.free(address)
    assert pool.used_bytes == 0
    assert pool.peak_bytes <= BYTES


def test_what_does_not_fit_is_refused_and_counted():
    pool = ArenaPool(START, 4096)
    first = pool.allocate(3000)
    for _ in range(2):
        with pytest.raises(MemoryError, match="found 1,000 bytes wanted, expected at most"):
            pool.allocate(1000)
    assert pool.refused == 2
    pool.free(first)
    assert pool.allocate(3000) == first
    assert pool.peak_bytes == pool.used_bytes == 3040


def test_block_is_given_back_once():
    pool = ArenaPool(START, BYTES)
    address = pool.allocate(10)
    pool.free(address)
    with pytest.raises(ValueError, match="expected an allocation"):
        pool.free(address)
