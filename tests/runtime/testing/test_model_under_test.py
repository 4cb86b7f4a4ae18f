"""The choice of the requests that share an execution."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
