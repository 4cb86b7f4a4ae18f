"""Seeded defects are refused, healthy graphs load, and a printed cure loads."""

import re

import numpy as np
import onnx
import pytest
from runtime.support.graphs import onnx_text
from runtime.verification.defects import DEFECTS, HEALTHY, ROWS

from ge_runtime import Runtime
from ge_runtime.assembly import with_parameters
from ge_runtime.engines.analysis.nudging import nudged_weights
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ConfigFault


def load(folder, family, body, parameters=None):
    """Load the graph with these parameters added; return the line of the load check."""
    onnx.save(family.model(body), folder / "model.onnx")
    config = with_parameters(family.config, parameters or {})
    runtime = Runtime.open(folder, config, instance_name="seeded_0")
    runtime.close()
    assert not runtime.warnings
    return next(line for line in runtime.report if "load check" in line)


@pytest.mark.brute_force
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_graphs_load(tmp_path, name):
    # The number of threads changes the rounding of products.
    threads = "3" if "product" in name or "deep" in name else "1"
    line = load(tmp_path, *HEALTHY[name], {"intra_op_threads": threads})
    assert "not checked" not in line


@pytest.mark.brute_force
@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_refused_and_the_printed_cure_loads(tmp_path, name):
    faults = []
    for threads in ("1", "3"):
        with pytest.raises(ConfigFault) as raised:
            load(tmp_path, *DEFECTS[name], {"intra_op_threads": threads})
        (fault,) = raised.value.faults
        faults.append(re.sub(r"-?\d+\.\d+(e[+-]\d+)?|-?\d+e[+-]\d+", "#", fault))
    assert faults[0].split(" whose ")[0] == faults[1].split(" whose ")[0]
    cure = re.search(r"Cure, tried: with (.*) it loads$", fault)
    if cure is None:
        assert fault.endswith("request alone")
        return
    parameters = dict(re.findall(r"'([^':]+): ([^']+)'", cure[1]))
    load(tmp_path, *DEFECTS[name], parameters)


ONE_ROW = "s = Constant <value: tensor = int64[2] {1, 4}> () r = Reshape (x, s) y = Add (x, r)"


def test_a_graph_of_one_row_is_served_with_one_row_and_a_warning(tmp_path):
    onnx.save(ROWS.model(ONE_ROW), tmp_path / "model.onnx")
    runtime = Runtime.open(tmp_path, ROWS.config, instance_name="seeded_0")
    (refused,) = runtime.infer([{"x": np.zeros((2, 4), np.float32)}])
    runtime.close()
    assert str(refused) == (
        "input 'x': found 2 rows in shape [2, 4], expected 1: the graph executes one row only"
    )
    (line,) = (line for line in runtime.report if "load check" in line)
    assert "; reduced to one row in each execution: each execution of two or more rows " in line
    (warning,) = runtime.warnings
    assert warning.startswith("seeded_0: load check: each execution of two or more rows failed: ")
    assert warning.endswith("served with one row in each execution, as with 'gears.batch: 1'")


def test_a_graph_of_one_row_is_refused_if_gears_have_more(tmp_path):
    with pytest.raises(ConfigFault, match="found a graph that executes one row only"):
        load(tmp_path, ROWS, ONE_ROW, {"gears.batch": "1, 4", "warmup": "none"})


def test_nudged_weights_differ_in_their_last_bit_alone(tmp_path):
    path = tmp_path / "model.onnx"
    weights = np.arange(64, dtype=np.float32).reshape(8, 8) / 4
    model = onnx_text("(float[b, 8] x) => (float[b, 8] y) { y = MatMul (x, w) }", w=weights)
    onnx.save(model, path)
    content, external = nudged_weights(path, np.random.default_rng(0))
    assert not external
    found = onnx.numpy_helper.to_array(onnx.load_from_string(bytes(content)).graph.initializer[0])
    steps = np.abs(found.view(np.int32) - weights.view(np.int32))
    assert {*steps.ravel().tolist()} == {0, 1}
    assert not steps[weights == np.rint(weights)].any()


def test_second_arithmetic_has_other_external_weights(tmp_path):
    path = tmp_path / "model.onnx"
    weights = np.random.default_rng(0).random((4, 4), np.float32)
    model = onnx_text(
        "(float[4, 4] x) => (float[4, 4] y) { y = Add (x, w) }",
        other=np.ones(8, np.float32),
        w=weights,
    )
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    engine = OnnxEngine.open(path, 1).perturbed(0)
    found = engine.run({"x": np.zeros((4, 4), np.float32)}, {"y": None})["y"]
    engine.close()
    assert {*np.abs(found.view(np.int32) - weights.view(np.int32)).ravel().tolist()} == {0, 1}
