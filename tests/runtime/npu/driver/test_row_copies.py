"""Rows gathered into and scattered from a slot: positions and number of copies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.npu.driver.memory import RowCopy, can_be_queued, gathering, scattering

SLOT, ROW = 640, 64


def moved(memory, copies):
    """Return the memory after the copies, whose sources and targets must not overlap."""
    for target, source, nbytes in copies:
        assert abs(target - source) >= nbytes
        memory[target : target + nbytes] = memory[source : source + nbytes]
    return memory


places = st.lists(st.integers(0, 9), min_size=1, max_size=8).map(
    lambda rows: [row * ROW for row in rows]
)


@given(places, st.integers(0, 8))
def test_a_batch_is_its_rows_and_these_once_more(own, padding):
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, 4096, np.uint8)
    before = memory.copy()
    copies = gathering(own, ROW, len(own) + padding, SLOT)
    after = moved(memory, copies)
    for row in range(len(own) + padding):
        at = SLOT + row * ROW
        assert any(
            np.array_equal(after[at : at + ROW], before[place : place + ROW])
            for place in (own if row >= len(own) else own[row : row + 1])
        )
    assert len(copies) <= len(own) + padding.bit_length()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True))
def test_rows_go_to_their_places(rows):
    own = [row * ROW for row in rows]
    memory = np.arange(4096, dtype=np.uint16).astype(np.uint8)
    before = memory.copy()
    after = moved(memory, scattering(own, ROW, SLOT))
    for number, place in enumerate(own):
        start = SLOT + number * ROW
        assert np.array_equal(after[place : place + ROW], before[start : start + ROW])


def test_neighbours_are_one_copy():
    assert gathering([128, 192, 0, 64], 64, 4, SLOT) == [
        RowCopy(SLOT, 128, 128),
        RowCopy(SLOT + 128, 0, 128),
    ]


@pytest.mark.parametrize("places", [[0, 64], [0, 32]])
def test_all_are_queued_or_none(places):
    copies = scattering(places, 16, SLOT)
    assert can_be_queued(copies) is False  # the second row begins in the middle of the slot
    assert can_be_queued(copies[:1]) is True
