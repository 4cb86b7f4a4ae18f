"""The values that a load check tries."""

import numpy as np
import pytest
from runtime.support.configs import encoder_config, model_config, tensor
from runtime.support.parsing import parse

from ge_runtime.specs import DType
from ge_runtime.verification.probes import Part, Values


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
