"""The error of a failed warm-up has the size, and parameters with which the model loads."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model

from ge_runtime import Runtime
from ge_runtime.errors import ArtifactFault


@pytest.fixture
def load(tmp_path):
    """Load a graph that slices frames and bins and fails if there are too few of them."""

    def load_model(least_frames, least_bins=1, most_rows=None, **parameters):
        # The largest elements along an axis: TopK fails if there are fewer than k.
        nodes = [
            helper.make_node("TopK", ["x", "frames"], ["a", "i"], axis=1),
            helper.make_node("TopK", ["a", "bins"], ["b", "j"], axis=2),
            helper.make_node("ReduceSum", ["b", "axes"], ["y"], keepdims=0),
        ]
        constants = {
            "frames": np.array([least_frames]),
            "bins": np.array([least_bins]),
            "axes": np.array([1, 2]),
        }
        if most_rows is not None:
            constants["shape"] = np.array([most_rows, 1])
            nodes[-1].output[0] = "sum"
            nodes += [
                helper.make_node("Reshape", ["sum", "shape"], ["one"]),
                helper.make_node("Squeeze", ["one", "last"], ["few"]),
                helper.make_node("Add", ["sum", "few"], ["y"]),
            ]
            constants["last"] = np.array([1])
        inputs = [("x", TensorProto.FLOAT, ["n", "frames", "bins"])]
        outputs = [("y", TensorProto.FLOAT, ["n"])]
        onnx.save(onnx_model(nodes, inputs, outputs, constants), tmp_path / "model.onnx")
        given = {
            "axes.x": "frames,bins",
            "limit.frames": "3000",
            "limit.bins": "90",
            "padding.frames": "equal",
            "padding.bins": "equal",
            "load_check": "off",
            "cost": "launch_us=1000, element_ns=1, element2_ns=0",
            **parameters,
        }
        config = {
            "name": "m",
            "max_batch_size": 4,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, -1]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": []}],
            "parameters": {key: {"string_value": value} for key, value in given.items() if value},
        }
        config["output"][0] |= {"dims": [1], "reshape": {"shape": []}}
        Runtime.open(tmp_path, config, instance_name="m_0").close()

    return load_model


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("frames", "bins", "given"),
    [
        (400, 1, {}),
        (3000, 1, {}),
        (2, 1, {}),
        (400, 80, {}),
        (1, 7, {}),
        (401, 7, {"align.frames": "4"}),
        (401, 7, {"min.frames": "100"}),
        (400, 1, {"cost_cache": "off", "cost": ""}),
    ],
)
def test_the_named_sizes_load_and_are_the_smallest(load, frames, bins, given):
    with pytest.raises(ArtifactFault) as raised:
        load(frames, bins, **given)
    text = str(raised.value)
    first = given.get("min.frames", given.get("align.frames", "1"))
    assert text.startswith(
        f"the graph fails in its warm-up: found a failed execution of 1 row(s), bins 1, "
        f"frames {first}, expected a size that the graph executes. Set 'min."
    )
    assert ". The failure was: onnxruntime: " in text
    cure = dict(re.findall(r"'(min\.\w+): (\d+)'", text))
    step = int(given.get("align.frames", 1))
    expected = {"min.frames": -(-frames // step) * step, "min.bins": bins}
    assert cure == {key: str(size) for key, size in expected.items() if size > 1}
    load(frames, bins, **{**given, **cure})


def test_without_a_cure_the_size_and_the_parameters_are_named(load):
    with pytest.raises(ArtifactFault) as raised:
        load(4000)
    assert "found a failed execution of 1 row(s), bins 1, frames 1, expected" in str(raised.value)
    assert "range.<input>" in str(raised.value)


def test_a_graph_of_one_row_gets_one_row(load):
    gears = {"gears.batch": "2,4"}
    with pytest.raises(ArtifactFault, match=r"execution of 2 row\(s\), .*set 'gears.batch: 1'"):
        load(1, most_rows=1, **gears)
    load(1, most_rows=1, **{"gears.batch": "1"})


def test_a_gear_that_fails_is_named(load):
    gears = {"gears.frames": "8,16", "gears.bins": "90"}
    with pytest.raises(
        ArtifactFault, match=r"execution of 1 row\(s\), bins 90, frames 8, .*'gears.frames'"
    ):
        load(10, **gears, **{"gears.batch": "1", "limit.frames": "16"})
