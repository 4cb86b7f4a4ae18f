"""The batch dimension of tensors between models that batch and models that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import signature

from reference_server.config.schema import EnsembleStep
from reference_server.core.tensor import DataType
from reference_server.scheduling.ensemble_plan import BatchDimAdapter


def a_model(dims, max_batch_size):
    tensor = (DataType.FP32, dims)
    return signature({"X": tensor}, {"Y": tensor}, max_batch_size=max_batch_size)


def chain(*models, dims=(1,), max_batch_size=0):
    """Return the adapter of an ensemble that is a chain of these models, from I to O."""
    names = ["I", *(f"t{number}" for number in range(1, len(models))), "O"]
    steps = [
        EnsembleStep("m", -1, {"X": names[number]}, {"Y": names[number + 1]})
        for number in range(len(models))
    ]
    tensor = (DataType.FP32, dims)
    outside = signature({"I": tensor}, {"O": tensor}, max_batch_size=max_batch_size)
    return BatchDimAdapter(outside, steps, models)


@pytest.mark.parametrize(
    ("dims", "shape", "given"),
    [
        ((1,), (1, 1), (1,)),
        ((1,), (2, 1), (2, 1)),
        ((-1,), (1, 3), (3,)),
        ((-1,), (2, 3), (2, 3)),
        ((-1, 2), (3, 2), (3, 2)),
        ((-1, 2), (1, 2), (1, 2)),
    ],
)
def test_batch_dimension_is_removed_for_a_model_without_batching(dims, shape, given):
    fitting = chain(a_model(dims, 0), dims=(1,), max_batch_size=4)
    assert fitting.for_step(0, "X", shape) == given


@pytest.mark.parametrize(
    ("dims", "shape", "given"),
    [((1,), (1,), (1, 1)), ((1,), (3, 1), (3, 1)), ((-1,), (7,), (1, 7)), ((2,), (3,), (3,))],
)
def test_batch_dimension_is_added_for_a_model_with_batching(dims, shape, given):
    assert chain(a_model(dims, 8)).for_step(0, "X", shape) == given


def test_client_gets_its_batch_dimension_back():
    fitting = chain(a_model((1,), 0), dims=(1,), max_batch_size=4)
    assert fitting.for_client("O", (1,)) == (1, 1)


def test_client_gets_no_batch_dimension_it_has_not_sent():
    assert chain(a_model((1,), 8)).for_client("O", (1, 1)) == (1,)


def test_batch_dimension_between_two_steps():
    fitting = chain(a_model((1,), 8), a_model((1,), 0), dims=(1,), max_batch_size=8)
    assert fitting.for_step(0, "X", (1, 1)) == (1, 1)
    assert fitting.for_step(1, "X", (1, 1)) == (1,)
    assert fitting.for_client("O", (1,)) == (1, 1)


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
DIMS = st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=3).map(tuple)


@given(SHAPES, DIMS, st.booleans())
def test_shape_is_unchanged_if_both_or_neither_batch(shape, dims, batched):
    size = 4 if batched else 0
    fitting = chain(a_model(dims, size), dims=dims, max_batch_size=size)
    assert fitting.for_step(0, "X", shape) is shape
    assert fitting.for_client("O", shape) is shape


@given(SHAPES, DIMS, st.booleans())
def test_adapted_shape_has_the_same_number_of_elements(shape, dims, batched):
    fitting = chain(a_model(dims, 4 * batched), dims=dims, max_batch_size=4 * (not batched))
    for fitted in (fitting.for_step(0, "X", shape), fitting.for_client("O", shape)):
        assert [size for size in fitted if size != 1] == [size for size in shape if size != 1]
