from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import PlanFault
from ge_runtime.memory import lifetimes
from ge_runtime.memory.lifetimes import Lifetime, pack

ALIGNMENT = 16


def buffers_of(most, steps=12, largest=200):
    """Lists of up to `most` buffers over a few steps."""
    spans = st.tuples(st.integers(0, steps), st.integers(0, steps)).map(sorted)
    drawn = st.lists(st.tuples(st.integers(0, largest), spans), max_size=most)
    return drawn.map(
        lambda buffers: [
            Lifetime(f"b{i}", nbytes, first, last)
            for i, (nbytes, (first, last)) in enumerate(buffers)
        ]
    )


def aligned(nbytes):
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def meet(one, other):
    return one.first <= other.last and other.first <= one.last


@pytest.mark.brute_force
@given(buffers_of(30))
def test_buffers_that_are_live_together_do_not_overlap(buffers):
    offsets = pack(buffers, ALIGNMENT).offsets
    for one, other in combinations(buffers, 2):
        if meet(one, other):
            start, end = offsets[one.name], offsets[one.name] + one.nbytes
            assert end <= offsets[other.name] or offsets[other.name] + other.nbytes <= start


@pytest.mark.brute_force
@given(buffers_of(30))
def test_buffers_are_aligned_and_inside_the_arena(buffers):
    packing = pack(buffers, ALIGNMENT)
    assert packing.offsets.keys() == {buffer.name for buffer in buffers}
    for buffer in buffers:
        assert packing.offsets[buffer.name] % ALIGNMENT == 0
        assert packing.offsets[buffer.name] >= 0
        assert packing.offsets[buffer.name] + buffer.nbytes <= packing.peak


@pytest.mark.brute_force
@given(buffers_of(30))
def test_the_peak_is_between_the_busiest_step_and_the_sum(buffers):
    packing = pack(buffers, ALIGNMENT)
    live = [
        sum(aligned(buffer.nbytes) for buffer in buffers if buffer.first <= step <= buffer.last)
        for step in range(13)
    ]
    assert packing.lower_bound == max(live)
    assert packing.lower_bound <= packing.peak
    assert packing.peak <= sum(aligned(buffer.nbytes) for buffer in buffers)


def brute_force(buffers):
    """Return the smallest possible peak.

    Placing the buffers of a best packing again, by rising offset and each as low as it can lie,
    moves none of them up. So some order of placing at the lowest free offset is a best one.
    """

    def peak_of(order):
        placed = []
        for buffer in order:
            offset = 0
            for start, other in sorted(placed, key=lambda entry: entry[0]):
                if meet(buffer, other) and start < offset + aligned(buffer.nbytes):
                    offset = max(offset, start + aligned(other.nbytes))
            placed.append((offset, buffer))
        return max((offset + aligned(buffer.nbytes) for offset, buffer in placed), default=0)

    return min(map(peak_of, permutations(buffers)))


@pytest.mark.brute_force
@given(buffers_of(5, steps=7, largest=8 * ALIGNMENT))
def test_the_peak_of_few_buffers_is_minimal(buffers):
    assert pack(buffers, ALIGNMENT).peak == brute_force(buffers)


@given(buffers_of(20))
def test_same_lifetimes_have_the_same_offsets(buffers):
    assert pack(buffers) == pack(buffers)


def test_buffers_that_follow_each_other_share_bytes():
    chain = [Lifetime(f"b{step}", 100, step, step + 1) for step in range(10)]
    packing = pack(chain, 64)
    assert (packing.peak, packing.lower_bound) == (256, 256)
    assert set(packing.offsets.values()) == {0, 128}


# Four buffers that fit into nine units; every order of the first round needs ten.
HARD = [
    Lifetime("a", 3 * 64, 1, 4),
    Lifetime("b", 3 * 64, 1, 5),
    Lifetime("c", 4 * 64, 5, 5),
    Lifetime("d", 3 * 64, 4, 4),
]


def test_an_order_above_the_bound_is_improved():
    packing = pack(HARD, 64)
    assert packing.peak == packing.lower_bound == 9 * 64


def test_search_ends_when_its_work_is_used_up(monkeypatch):
    monkeypatch.setattr(lifetimes, "_WORK", 0)
    packing = pack(HARD, 64)
    assert (packing.peak, packing.lower_bound) == (10 * 64, 9 * 64)


def test_no_buffers_need_no_bytes():
    packing = pack([])
    assert (packing.offsets, packing.peak, packing.lower_bound) == ({}, 0, 0)


def test_a_duplicate_name_is_a_fault():
    twice = [Lifetime("b", 1, 0, 0), Lifetime("b", 2, 1, 1)]
    with pytest.raises(PlanFault) as raised:
        pack(twice)
    assert str(raised.value) == "found 1 name(s) for 2 buffers, expected one for each"
