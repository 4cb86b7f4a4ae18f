import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import costs

from ge_runtime.batching.cost import CostModel

TERMS = [(), ((),), (("a",),), (("a",), ("a", "b")), (("a", "b"), ("b",), ())]
extent = st.integers(1, 4096)


@pytest.mark.parametrize(
    ("terms", "elements"),
    [((), 1), (((),), 1), ((("a",),), 3), ((("a",), ("a", "b")), 18), ((("a", "b"), ()), 16)],
)
def test_elements_add_up_the_products_of_the_terms(terms, elements):
    assert CostModel(0.0, 0.0, 0.0, terms).elements({"a": 3, "b": 5}) == elements


def test_seconds_are_the_launch_and_each_row_by_elements_and_their_square():
    cost = CostModel(100.0, 10.0, 1.0, (("a",),))
    assert cost.seconds(4, {"a": 3}) == 100 + 4 * (10 * 3 + 1 * 9)


@given(
    st.sampled_from(TERMS).flatmap(lambda terms: costs(*terms)),
    st.lists(st.tuples(st.integers(1, 64), extent, extent), min_size=1),
)
def test_arrays_cost_the_same_as_their_elements(cost, sizes):
    rows, a, b = np.array(sizes).T
    many = cost.seconds_many(rows[:, None], {"a": a[:, None], "b": b})
    many = np.broadcast_to(many, (len(sizes), len(sizes)))
    for i, j in np.ndindex(many.shape):
        extents = {"a": sizes[i][1], "b": sizes[j][2]}
        assert many[i, j] == pytest.approx(cost.seconds(sizes[i][0], extents), rel=1e-12)
