"""The cost model: the time of an execution of given rows and sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.batching.gear_sets import costs

from ge_runtime.batching.cost import MOST_GROWING, CostModel

TERMS = [(), ((),), (("a",),), (("a",), ("a", "b")), (("a", "b"), ("b",), ())]
extent = st.integers(1, 4096)


@pytest.mark.parametrize(
    ("terms", "elements"),
    [((), 1), (((),), 1), ((("a",),), 3), ((("a",), ("a", "b")), 18), ((("a", "b"), ()), 16)],
)
def test_elements_add_up_the_products_of_the_terms(terms, elements):
    assert CostModel(0.0, 0.0, 0.0, terms).elements({"a": 3, "b": 5}) == elements


def test_seconds_are_the_launch_and_each_row_by_elements_their_square_and_the_rows():
    cost = CostModel(100.0, 10.0, 1.0, (("a",),))
    assert cost.seconds(4, {"a": 3}) == 100 + 4 * (10 * 3 + 1 * 9)
    growing = CostModel(100.0, 10.0, 1.0, (("a",),), growth_s=5.0)
    assert growing.seconds(4, {"a": 3}) == 100 + 4 * (10 * 3 + 1 * 9 + 5 * 2 * 3)


def test_a_graph_without_padding_computes_valid_elements_and_padded_pairs():
    cost = CostModel(100.0, 10.0, 1.0, (("a",),), growth_s=5.0)
    seconds = 100 + 7 * (10 + 5 * 2) + 4 * 3 * 3 * 1
    assert cost.seconds(4, {"a": 3}, valid=7) == seconds
    assert cost.seconds_many(np.array([4]), {"a": np.array([3])}, np.array([7])) == seconds


def test_rows_do_not_become_more_expensive_above_a_number():
    cost = CostModel(0.0, 0.0, 0.0, (), growth_s=1.0)
    most = cost.seconds(MOST_GROWING, {}) / MOST_GROWING
    assert cost.seconds(3 * MOST_GROWING, {}) == 3 * MOST_GROWING * most
    assert cost.seconds_many(np.array([3 * MOST_GROWING]), {}) == 3 * MOST_GROWING * most


def test_a_factor_scales_every_execution():
    cost = CostModel(1.0, 2.0, 3.0, (("a",),), 4.0)
    assert cost.scaled(2.0).seconds(5, {"a": 7}) == 2 * cost.seconds(5, {"a": 7})


def test_the_text_of_the_model_has_the_units_of_the_parameter():
    cost = CostModel(120e-6, 35.2e-9, 0.01e-9, ())
    assert str(cost) == "launch 120 us, element 35.2 ns, squared element 0.01 ns"
    assert str(CostModel(120e-6, 0.0, 0.0, (), 2e-9)).endswith(", growth 2 ns")


@pytest.mark.brute_force
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


@pytest.mark.brute_force
@given(costs(("a",), ("a", "b")), st.integers(1, 64), extent, extent)
def test_more_rows_or_elements_never_take_less(cost, rows, a, b):
    least = cost.seconds(rows, {"a": a, "b": b})
    assert least >= cost.launch_s
    assert cost.seconds(rows + 1, {"a": a, "b": b}) >= least
    assert cost.seconds(rows, {"a": a + 1, "b": b}) >= least
    assert cost.seconds(rows, {"a": a, "b": b + 1}) >= least
