"""The choice of the requests that share an execution, and memory that is filled with poison."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.memory.arena import AnswerSlots, Arena, aligned_bytes
from ge_runtime.testing.model_under_test import MAX_GROUP, alone, at_random, exactly


def anything(members):
    return True


@given(st.integers(1, 30), st.integers(0, 99))
def test_random_groups_contain_each_request_once_and_only_members_that_fit(count, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 9, count)

    def fits(members):
        return rows[list(members)].sum() <= 8

    groups = at_random(rng)(count, fits)
    assert sorted(chain.from_iterable(groups)) == list(range(count))
    assert all(fits(group) and len(group) <= MAX_GROUP for group in groups)


def test_random_groups_differ_and_have_several_members():
    groups = [at_random(np.random.default_rng(seed))(8, anything) for seed in range(20)]
    assert len({str(own) for own in groups}) == 20
    assert all(any(len(group) > 1 for group in own) for own in groups)


def test_groups_can_be_single_requests_or_given():
    assert alone(3, anything) == [[0], [1], [2]]
    assert exactly([[2, 0], [1]])(3, anything) == [[2, 0], [1]]


def test_tensors_are_poisoned_when_they_are_carved_and_only_then():
    arena = Arena(aligned_bytes(256), "inputs")
    first = arena.carve(np.dtype(np.float32), (16,))
    first[...] = 1
    arena.poison = 0xFF
    second = arena.carve(np.dtype(np.float32), (2, 8))
    assert np.isnan(second).all()
    assert (first == 1).all()
    arena.poison = None
    arena.reset()
    assert (arena.carve(np.dtype(np.float32), (16,)) == 1).all()


def test_slots_poison_the_tensors_carved_from_them():
    slots = AnswerSlots([aligned_bytes(256)])
    slots.poison = 0x7F
    for _ in range(2):
        held = slots.take()
        assert (held.carve(np.dtype(np.uint8), (100,)) == 0x7F).all()
    assert slots.spilled == 1
