from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ge_runtime.errors import PlanFault
from ge_runtime.memory import lifetimes
from ge_runtime.memory.lifetimes import Lifetime, Suballocator, pack

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


def test_a_duplicate_name_is_a_fault():
    twice = [Lifetime("b", 1, 0, 0), Lifetime("b", 2, 1, 1)]
    with pytest.raises(PlanFault) as raised:
        pack(twice)
    assert str(raised.value) == "found 1 name(s) for 2 buffers, expected one for each"


CAPACITY = 200


class SuballocatorMachine(RuleBasedStateMachine):
    """Compares the suballocator with a map of allocated bytes."""

    offsets = Bundle("offsets")

    def __init__(self):
        super().__init__()
        self.range = Suballocator(CAPACITY)
        self.owned = bytearray(CAPACITY)  # 1: allocated
        self.sizes = {}

    def gaps(self):
        """Return (start, end) of each run of free bytes."""
        runs, start = [], None
        for index, owned in enumerate([*self.owned, 1]):
            if not owned and start is None:
                start = index
            elif owned and start is not None:
                runs.append((start, index))
                start = None
        return runs

    @rule(target=offsets, nbytes=st.integers(1, 80), alignment=st.sampled_from([1, 3, 8, 32]))
    def allocate(self, nbytes, alignment):
        places = [
            (end - start, start + -start % alignment)
            for start, end in self.gaps()
            if start + -start % alignment + nbytes <= end
        ]
        offset = self.range.allocate(nbytes, alignment)
        assert offset == (min(places)[1] if places else None)
        if offset is not None:
            assert not any(self.owned[offset : offset + nbytes])
            self.owned[offset : offset + nbytes] = b"\1" * nbytes
            self.sizes[offset] = nbytes
        return offset

    @rule(offset=consumes(offsets))
    def free(self, offset):
        if offset is None:
            return
        nbytes = self.sizes.pop(offset)
        self.range.free(offset)
        self.owned[offset : offset + nbytes] = bytes(nbytes)

    @invariant()
    def statistics_are_those_of_the_gaps(self):
        sizes = [end - start for start, end in self.gaps()]
        largest = max(sizes, default=0)
        assert (self.range.free_bytes, self.range.largest_free) == (sum(sizes), largest)
        assert f"in {len(sizes)} block(s)" in repr(self.range)  # so free blocks are never adjacent
        assert len(sizes) <= len(self.sizes) + 1

    def teardown(self):
        for offset in self.sizes:
            self.range.free(offset)
        assert self.range.free_bytes == self.range.largest_free == CAPACITY


TestSuballocatorMachine = SuballocatorMachine.TestCase
TestSuballocatorMachine.settings = settings(max_examples=40)
TestSuballocatorMachine.pytestmark = pytest.mark.brute_force


@pytest.mark.parametrize("offset", [0, 5, 99], ids=["freed before", "inside", "never given"])
def test_only_allocations_can_be_freed(offset):
    memory = Suballocator(100)
    memory.free(memory.allocate(4))
    memory.allocate(2)
    memory.allocate(8)
    memory.free(0)
    with pytest.raises(ValueError, match=f"found nothing at offset {offset}, expected an alloc"):
        memory.free(offset)


@pytest.mark.parametrize(("nbytes", "alignment"), [(0, 1), (-1, 1), (1, 0)])
def test_sizes_and_alignments_below_one_are_refused(nbytes, alignment):
    with pytest.raises(ValueError, match=f"found {nbytes} bytes aligned to {alignment}, expected"):
        Suballocator(100).allocate(nbytes, alignment)


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match="capacity: found 0 bytes, expected at least 1"):
        Suballocator(0)
