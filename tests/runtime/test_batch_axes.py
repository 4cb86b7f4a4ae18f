"""Rows along any dim of the graph's tensors, and tensors without rows."""

import numpy as np
import pytest
from runtime.support.axis_graphs import rated, rated_config, time_major, time_major_config
from runtime.support.configs import model_config, packed_config, pixels_config, tensor
from runtime.support.parsing import assert_fault, parse

from ge_runtime.errors import ConfigFault, RequestFault
from ge_runtime.specs import ROWS

COST = {"cost": "launch_us=1000000, element_ns=1, element2_ns=0"}
"""A cost so high that all requests that can share an execution do."""


def frames(rows, tokens):
    values = np.arange(rows * tokens * 2, dtype=np.float32).reshape(rows, tokens, 2)
    return {"frames": values + 100 * tokens}


@pytest.mark.parametrize("gears", [{}, {"gears.tokens": "4, 20", "gears.batch": "2, 5"}])
def test_time_major_tensors_are_batched_and_split(opened, gears):
    runtime = opened(time_major(), time_major_config({**COST, **gears}))
    requests = [frames(1, 7), frames(2, 3), frames(1, 20)]
    answers = runtime.infer(requests)
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer["doubled"], 2 * request["frames"])
        np.testing.assert_array_equal(answer["sums"], request["frames"].sum(axis=1))
        assert answer["doubled"].flags.c_contiguous
    assert runtime.counts().launches == 1


def rows(values, rate):
    x = np.array(values, np.float32).reshape(-1, 2)
    return {"x": x, "rate": np.full((len(x), 1), rate, np.float32)}


def test_only_requests_of_equal_values_share_an_input_without_rows(opened):
    runtime = opened(rated(), rated_config(COST))
    assert np.isnan(runtime.infer([rows([1, 2, 3, 4], np.nan)])[0]["y"]).all()
    requests = [rows([1, 2], 8), rows([3, 4], 16), rows([5, 6, 7, 8], 8), rows([9, 1], 16)]
    answers = runtime.infer(requests)
    for request, answer in zip(requests, answers, strict=True):
        rate = request["rate"][0, 0]
        np.testing.assert_array_equal(answer["y"], request["x"] * rate)
        np.testing.assert_array_equal(answer["rates"], [[rate, 2 * rate]] * len(request["x"]))
        assert all(array.flags.writeable for array in answer.values())
    assert runtime.counts().launches == 3


def test_rows_of_one_request_that_differ_are_refused(opened):
    runtime = opened(rated(), rated_config(COST))
    request = rows([1, 2, 3, 4], 8)
    request["rate"][1] = 9
    refused, answer = runtime.infer([request, rows([1, 2], 8)])
    assert isinstance(refused, RequestFault)
    assert str(refused) == (
        "input 'rate': found rows that differ, expected equal rows (batch_axis.rate: none): the "
        "graph takes one value for all"
    )
    np.testing.assert_array_equal(answer["y"], [[8, 16]])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (time_major_config({"batch_axis.frame": "1"}), "parameter 'batch_axis.frame': found no"),
        (time_major_config({"batch_axis.frames": "4"}), "parameter 'batch_axis.frames': found 4,"),
        (time_major_config({"batch_axis.mask": "none"}), "parameter 'batch_axis.mask': found"),
        (time_major_config({"batch_axis.frames": "none"}), "expected fixed dims: it is the same"),
        (time_major_config({"batch_axis.sums": "1"}), "output 'sums': found FP32[*,2] in the"),
        (time_major_config({"batch_axis.frames": "one"}), "parameter 'batch_axis.frames': found"),
    ],
)
def test_a_dim_that_the_graph_does_not_have_is_refused(opened, config, expected):
    with pytest.raises(ConfigFault) as raised:
        opened(time_major(), config)
    assert expected in str(raised.value)


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
