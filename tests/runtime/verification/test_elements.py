"""Random elements and requests are in their ranges; poison is never one of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.parsing import parse

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import DType, TensorSpec
from ge_runtime.verification.distance import TOLERANCES
from ge_runtime.verification.elements import poison_of, random_elements, range_of
from ge_runtime.verification.probes import Part, Values

NUMBERS = [dtype for dtype in DType if dtype not in (DType.BOOL, DType.BYTES)]
FLOATS = list(TOLERANCES)
NAN = float("nan")


def value_of(dtype, array):
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


@given(st.sampled_from(NUMBERS), st.integers(0, 60), st.integers(1, 60), st.integers(0, 9))
def test_random_numbers_are_within_their_range(dtype, low, width, seed):
    within = range_of(TensorSpec("x", dtype, ()), (low, low + width))
    drawn = random_elements(np.random.default_rng(seed), dtype, (3, 50), within)
    assert (drawn.dtype, drawn.shape) == (dtype.numpy, (3, 50))
    values = value_of(dtype, drawn).astype(np.float64)
    highest = low + width - 1 if dtype.is_integer else low + width
    assert low <= values.min()
    assert values.max() <= highest


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_without_a_range_elements_differ_and_are_small(dtype):
    within = range_of(TensorSpec("x", dtype, ()), None)
    drawn = random_elements(np.random.default_rng(0), dtype, (2, 100), within)
    assert (drawn.dtype, drawn.shape) == (dtype.numpy, (2, 100))
    assert len(set(drawn.ravel().tolist())) > 1
    if dtype in NUMBERS:
        assert np.abs(value_of(dtype, drawn).astype(np.float64)).max() < 10


def test_a_range_may_contain_the_largest_integers():
    spec = TensorSpec("x", DType.UINT64, ())
    within = range_of(spec, (2.0**63, 2.0**64))
    drawn = random_elements(np.random.default_rng(0), DType.UINT64, (9,), within)
    assert drawn.min() >= 2**63
    assert range_of(TensorSpec("x", DType.UINT8, ()), (0, 256)) == (0, 256)


@pytest.mark.parametrize(
    ("dtype", "given", "found"),
    [
        (DType.INT64, (5, 5), "5:5"),
        (DType.INT64, (0, 1.5), "0:1.5"),
        (DType.UINT8, (-1, 5), "-1:5"),
        (DType.UINT8, (0, 257), "0:257"),
        (DType.FP16, (0, 1e5), "0:100000"),
        (DType.FP32, (NAN, 1), "nan:1"),
    ],
)
def test_a_range_outside_the_type_is_refused(dtype, given, found):
    with pytest.raises(RuntimeFault, match=f"range of 'x': found {found}, expected two "):
        range_of(TensorSpec("x", dtype, ()), given)


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.value)
def test_poison_is_nan_or_the_largest_integer(dtype):
    poison = value_of(dtype, np.array([poison_of(dtype)]))[0]
    assert np.isnan(poison) if dtype in FLOATS else poison == np.iinfo(dtype.numpy).max


@pytest.mark.parametrize("name", ["BOOL", "INT8", "INT64", "FP16", "BF16", "FP64"])
def test_equal_seeds_give_equal_values_and_the_halves_of_a_range_differ(name):
    config = parse(model_config([tensor("x", name, [64])], [tensor("y", name, [64])]))
    values = Values(config)
    one, same, other = (values.block({}, (seed,)).tensors["x"] for seed in (1, 1, 2))
    assert one.tobytes() == same.tobytes() != other.tobytes()
    low, high = (values.block({}, (1,), part).tensors["x"] for part in (Part.LOWER, Part.UPPER))
    if name == "BF16":  # bits: the sign is the highest
        low, high = ((array.astype(np.int64) >> 15) * -1 for array in (low, high))
    assert low.max() <= high.min()
    assert low.tobytes() != high.tobytes()


@pytest.mark.parametrize("name", ["FP16", "FP32", "FP64", "BF16"])
def test_nudged_floats_are_neighbouring_values(name):
    dtype = DType[name]
    config = parse(model_config([tensor("x", name, [64])], [tensor("y", name, [64])]))
    values = Values(config)
    block = values.block({}, (1,))
    data, moved = block.tensors["x"], values.nudged(block, (2,)).tensors["x"]
    bits = np.dtype(f"u{dtype.numpy.itemsize}")
    steps = moved.view(bits).astype(np.int64) - data.view(bits).astype(np.int64)
    assert {*steps.ravel().tolist()} == {-1, 1}


def test_integers_are_not_nudged():
    values = Values(parse(encoder_config()))
    assert values.nudged(values.block({"tokens": 3}, (1,)), (2,)) is None


def test_values_are_within_the_configured_range():
    config = model_config(
        [tensor("x", "INT64", [64])], [tensor("y", "INT64", [64])], {"range.x": "5..8"}
    )
    values = Values(parse(config))
    drawn = {part: values.block({}, (1,), part).tensors["x"] for part in Part}
    assert {*drawn[Part.ALL].ravel().tolist()} == {5, 6, 7, 8}
    assert {*drawn[Part.LOWER].ravel().tolist()} == {5, 6}
    assert {*drawn[Part.UPPER].ravel().tolist()} == {7, 8}


def test_on_devices_integers_without_a_range_are_0_and_1():
    config = model_config(
        [tensor("x", "INT64", [64])], [tensor("y", "INT64", [64])], {"devices": "npu:0"}
    )
    values = Values(parse(config))
    drawn = values.block({}, (1,)).tensors["x"].ravel().tolist()
    assert {*drawn} == {0, 1}
    assert drawn[0] == 1
