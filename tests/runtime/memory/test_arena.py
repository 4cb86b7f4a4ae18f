import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import PlanFault
from ge_runtime.memory.arena import Arena, aligned_bytes
from ge_runtime.memory.plan import ALIGNMENT

INT64 = np.dtype(np.int64)
tensors = st.tuples(
    st.sampled_from(["?", "u1", "f2", "i4", "f8"]).map(np.dtype),
    st.lists(st.integers(1, 6), max_size=3).map(tuple),
)


@given(st.lists(tensors, max_size=8))
def test_tensors_are_exact_aligned_and_apart(wanted):
    arena = Arena(aligned_bytes(16 * 1024), "lane")
    carved = [arena.carve(dtype, shape) for dtype, shape in wanted]
    for number, (tensor, (dtype, shape)) in enumerate(zip(carved, wanted, strict=True)):
        assert (tensor.dtype, tensor.shape) == (dtype, shape)
        assert tensor.flags.c_contiguous
        assert tensor.flags.writeable
        assert tensor.ctypes.data % ALIGNMENT == 0
        assert not any(np.shares_memory(tensor, other) for other in carved[number + 1 :])


@given(st.lists(tensors, max_size=8))
def test_no_more_is_taken_than_alignment_asks_for(wanted):
    sizes = [int(np.prod(shape)) * dtype.itemsize for dtype, shape in wanted]
    needed = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
    arena = Arena(aligned_bytes(needed), "lane")
    for dtype, shape in wanted:
        arena.carve(dtype, shape)


def test_the_last_byte_can_be_carved_and_not_one_more():
    arena = Arena(aligned_bytes(128), "answers")
    arena.carve(INT64, (7,))
    with pytest.raises(PlanFault) as raised:
        arena.carve(INT64, (3, 3))
    assert str(raised.value) == (
        "answers: found shape [3, 3] of 72 bytes, expected at most 64, the rest of what was planned"
    )
    assert arena.carve(INT64, (8,)).shape == (8,)
    with pytest.raises(PlanFault, match="expected at most 0"):
        arena.carve(np.dtype(np.bool_), (1,))


def test_reset_carves_the_same_bytes_again():
    arena = Arena(aligned_bytes(64), "lane")
    first = arena.carve(INT64, (8,))
    arena.reset()
    assert arena.carve(INT64, (2, 4)).ctypes.data == first.ctypes.data


def test_nothing_is_carved_from_a_closed_arena():
    arena = Arena(aligned_bytes(64), "lane")
    arena.close()
    arena.close()
    assert arena.free_bytes == 0
    with pytest.raises(PlanFault):
        arena.carve(INT64, (1,))


def test_repr_tells_how_full_it_is():
    arena = Arena(aligned_bytes(4096), "lane")
    arena.carve(INT64, (130,))
    assert repr(arena) == "<Arena lane: 1,040 of 4,096 bytes carved>"


@pytest.mark.parametrize("nbytes", [2**62, 2**80], ids=["no such memory", "no such number"])
def test_memory_that_cannot_be_had_is_a_fault(nbytes):
    with pytest.raises(PlanFault, match="found no memory for"):
        aligned_bytes(nbytes)
