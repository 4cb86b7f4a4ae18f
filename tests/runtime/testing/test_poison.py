"""Memory that a test fills with poison before it is written."""

import numpy as np

from ge_runtime.memory.arena import AnswerSlots, Arena, aligned_bytes

FLOATS = np.dtype(np.float32)


def test_tensors_are_poisoned_when_they_are_carved_and_only_then():
    arena = Arena(aligned_bytes(256), "inputs")
    first = arena.carve(FLOATS, (16,))
    first[...] = 1
    arena.poison = 0xFF
    second = arena.carve(FLOATS, (2, 8))
    assert np.isnan(second).all()
    assert (first == 1).all()
    arena.poison = None
    arena.reset()
    assert (arena.carve(FLOATS, (16,)) == 1).all()


def test_slots_poison_the_tensors_carved_from_them():
    slots = AnswerSlots([aligned_bytes(256)])
    slots.poison = 0x7F
    for _ in range(2):
        held = slots.take()
        assert (held.carve(np.dtype(np.uint8), (100,)) == 0x7F).all()
    assert slots.spilled == 1
