import pytest
from runtime.support.configs import model_config, packed_config, pixels_config, tensor
from runtime.support.parsing import assert_fault, parse

from ge_runtime.specs import ROWS


def test_rows_are_first_by_default():
    axes = parse(pixels_config({"batch_axis.image": "3", "batch_axis.gain": "none"})).batch_axes
    assert axes.dims("image", (1, "height", "width")) == (1, "height", "width", ROWS)
    assert axes.dims("gain", (2,)) == (2,)
    assert axes.dims("mask", ("height",)) == (ROWS, "height")
    assert axes.without == {"gain"}


def test_a_model_without_a_batch_dimension_has_no_rows_anywhere():
    config = model_config([tensor("x", "FP32", [2])], [tensor("y", "FP32", [2])], batch=0)
    assert parse(config).batch_axes.dims("x", (2,)) == (2,)
    config["parameters"]["batch_axis.x"] = {"string_value": "1"}
    expected = "found max_batch_size 0, expected at least 1: without it there are no rows"
    assert_fault(config, f"parameter 'batch_axis.x': {expected}")


@pytest.mark.parametrize("name", ["input_ids", "cu_seqlens"])
def test_packing_and_batch_axis_exclude_each_other(name):
    expected = "found packing: tokens as well, expected one of the two"
    assert_fault(packed_config({f"batch_axis.{name}": "1"}), f"batch_axis.{name}': {expected}")
