"""Answers keep their content while they are referenced; their slot is reused afterwards."""

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.errors import PlanFault
from ge_runtime.memory.arena import AnswerSlots, Arena, aligned_bytes
from ge_runtime.memory.plan import ALIGNMENT

INT64 = np.dtype(np.int64)
tensors = st.tuples(
    st.sampled_from(["?", "u1", "f2", "i4", "f8"]).map(np.dtype),
    st.lists(st.integers(1, 6), max_size=3).map(tuple),
)


@pytest.mark.brute_force
@given(st.lists(tensors, max_size=8))
def test_tensors_are_exact_aligned_and_do_not_overlap(wanted):
    arena = Arena(aligned_bytes(16 * 1024), "inputs")
    carved = [arena.carve(dtype, shape) for dtype, shape in wanted]
    for number, (tensor, (dtype, shape)) in enumerate(zip(carved, wanted, strict=True)):
        assert (tensor.dtype, tensor.shape) == (dtype, shape)
        assert tensor.flags.c_contiguous
        assert tensor.flags.writeable
        assert tensor.ctypes.data % ALIGNMENT == 0
        assert not any(np.shares_memory(tensor, other) for other in carved[number + 1 :])


def test_the_last_byte_can_be_carved_and_not_one_more():
    arena = Arena(aligned_bytes(128), "answers")
    arena.carve(INT64, (7,))
    with pytest.raises(PlanFault) as raised:
        arena.carve(INT64, (3, 3))
    assert str(raised.value) == (
        "answers: found shape [3, 3] of 72 bytes, expected at most 64, the rest of the planned "
        "memory"
    )
    assert arena.carve(INT64, (8,)).shape == (8,)
    with pytest.raises(PlanFault, match="expected at most 0"):
        arena.carve(np.dtype(np.bool_), (1,))


def test_nothing_is_carved_from_a_closed_arena():
    arena = Arena(aligned_bytes(64), "inputs")
    arena.close()
    arena.close()
    assert arena.free_bytes == 0
    with pytest.raises(PlanFault):
        arena.carve(INT64, (1,))


@pytest.mark.parametrize("nbytes", [2**62, 2**80], ids=["no such memory", "no such number"])
def test_a_failed_allocation_is_a_fault(nbytes):
    with pytest.raises(PlanFault, match="found no memory for"):
        aligned_bytes(nbytes)


FLOATS = np.dtype(np.float32)
SLOT = 4096


def some_slots(count=3):
    return AnswerSlots([aligned_bytes(SLOT) for _ in range(count)])


def batch_of(slots, number=0.0, rows=8):
    """Return a batch whose elements are all `number`, as an engine would write it."""
    batch = slots.take().carve(FLOATS, (rows, 16))
    batch[...] = number
    return batch


@pytest.mark.brute_force
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 8), st.lists(st.integers(0, 30), max_size=6)), max_size=20),
)
def test_an_answer_never_changes_while_it_is_held(count, executions):
    """Each execution answers one-row requests; then some of the held answers are dropped."""
    slots, held = some_slots(count), []
    for number, (rows, dropped) in enumerate(executions):
        batch = batch_of(slots, number, rows)
        held += [(number, batch[row : row + 1]) for row in range(rows)]
        del batch
        for place in dropped:
            if held:
                del held[place % len(held)]
        assert all((answer == expected).all() for expected, answer in held)
        used = {expected for expected, _ in held}
        assert slots.free >= count - len(used)
    held.clear()
    assert slots.free == count


@pytest.mark.brute_force
@pytest.mark.parametrize(
    "view",
    [
        lambda batch: batch[2:6].reshape(2, 32)[1:],
        lambda batch: batch[1].view(np.int32),
        lambda batch: memoryview(batch[7:]),
        lambda batch: np.from_dlpack(batch[1:3]),
        lambda batch: np.frombuffer(batch, np.uint8)[7:9],
        lambda batch: iter(batch[4]),
    ],
    ids=["reshaped", "other type", "buffer", "dlpack", "bytes", "iterator"],
)
def test_a_view_of_a_view_of_any_kind_keeps_the_slot(view):
    slots = some_slots(1)
    batch = batch_of(slots)
    answer = view(batch)
    del batch
    gc.collect()
    assert slots.free == 0
    del answer
    assert slots.free == 1


def test_an_answer_in_a_reference_cycle_frees_the_slot_when_collected():
    slots = some_slots(1)
    cycle = [batch_of(slots)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert slots.free == 1


def test_answers_may_be_freed_on_another_thread():
    slots = some_slots(2)
    queue = [batch_of(slots), batch_of(slots)]
    sender = threading.Thread(target=queue.clear)
    sender.start()
    sender.join()
    assert slots.free == 2


def test_without_a_free_slot_memory_is_allocated():
    slots = some_slots(1)
    held = [batch_of(slots, number) for number in range(3)]
    assert slots.free == 0
    assert slots.spilled == 2
    for number, batch in enumerate(held):
        assert (batch == number).all()
        assert batch.ctypes.data % 64 == 0
    held.clear()
    assert slots.free == 1
    batch_of(slots)
    assert slots.spilled == 2


def test_a_spilled_slot_holds_no_more_than_a_planned_one():
    slots = some_slots(1)
    held = slots.take()
    for slot in (held, slots.take()):
        with pytest.raises(PlanFault, match=f"answers: .* expected at most {SLOT:,}"):
            slot.carve(FLOATS, (SLOT // 4 + 1,))


def test_closed_slots_free_their_memory_with_the_last_answer():
    memory = [aligned_bytes(SLOT) for _ in range(2)]
    dead = [weakref.ref(own.base) for own in memory]
    slots = AnswerSlots(memory)
    answer = batch_of(slots, 7.0)
    del memory
    slots.close()
    assert [ref() is None for ref in dead].count(True) == 1
    assert (answer == 7.0).all()
    del answer
    assert all(ref() is None for ref in dead)
    slots.close()
