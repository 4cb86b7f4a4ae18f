import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ge_runtime.memory.lifetimes import Suballocator

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


def test_the_tightest_then_the_lowest_place_is_chosen():
    memory = Suballocator(100)
    for nbytes in (20, 10, 10, 10, 10, 40):  # full
        memory.allocate(nbytes)
    for offset in (0, 30, 50):  # free: 20 bytes at 0, 10 at 30, 10 at 50
        memory.free(offset)
    assert [memory.allocate(10), memory.allocate(10), memory.allocate(10)] == [30, 50, 0]


def test_a_tight_place_that_alignment_rules_out_is_passed_over():
    memory = Suballocator(100)
    first, second = memory.allocate(10), memory.allocate(10)
    memory.allocate(12)
    memory.free(second)
    assert (first, second) == (0, 10)
    assert memory.allocate(10, alignment=32) == 32


def test_bytes_that_alignment_skips_stay_free():
    memory = Suballocator(100)
    memory.allocate(10)
    assert memory.allocate(10, alignment=64) == 64
    assert (memory.allocate(54), memory.allocate(26)) == (10, 74)
    assert memory.free_bytes == 0


def test_the_whole_range_can_be_one_allocation():
    memory = Suballocator(100)
    assert memory.allocate(100, alignment=64) == 0
    assert memory.allocate(1) is None
    assert (memory.free_bytes, memory.largest_free) == (0, 0)


def test_repr_shows_free_bytes():
    memory = Suballocator(10_000)
    memory.allocate(1_000)
    assert repr(memory) == (
        "<Suballocator: 9,000 of 10,000 bytes free in 1 block(s), the largest 9,000; "
        "1 allocation(s)>"
    )


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
