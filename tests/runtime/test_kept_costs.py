"""Costs kept for the next start: measured at load, or learned while serving."""

import contextlib
import json

import numpy as np
import onnx
import pytest
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, write

from ge_runtime import Runtime
from ge_runtime.batching.calibration import Sample, calibrate
from ge_runtime.batching.cost import BATCH, CostModel
from ge_runtime.scheduling import executor


@pytest.fixture
def folder(tmp_path):
    write(ENCODER, "onnxruntime", tmp_path)
    return tmp_path


class Clocks:
    """Replaces clocks, which other processes disturb, with computed times of executions."""

    def __init__(self):
        self.seconds = CostModel(1e-3, 1e-5, 0.0, (("tokens",),)).seconds
        self.calibrations = 0

    def calibrate(self, execute, gears, terms, *, budget_s):
        def sample(gear):
            execute(gear)
            return Sample(self.seconds(gear.rows, gear.extents))

        self.calibrations += 1
        return calibrate(sample, gears, terms, budget_s=budget_s)


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(executor, "calibrate", clocks.calibrate)
    return clocks


@pytest.fixture
def opened(folder, clocks):
    """Return a function: parameters -> a runtime that keeps its costs in the version folder."""
    with contextlib.ExitStack() as stack:

        def open_runtime(**parameters):
            config = encoder_config({"cost_cache": "costs", **parameters})
            runtime = Runtime.open(folder, config, instance_name="kept_0")
            stack.callback(runtime.close)
            return runtime

        yield open_runtime


def files(folder):
    return sorted((folder / "costs").glob("*"))


def kept(folder):
    (path,) = files(folder)
    return json.loads(path.read_text())


def serve(runtime, requests):
    request = {"input_ids": np.ones((1, 3), np.int64), "lengths": np.full((1, 1), 3, np.int32)}
    for _ in range(requests):
        (answer,) = runtime.infer([request])
        assert isinstance(answer, dict), answer


def test_the_next_start_uses_measured_costs(opened, folder, clocks):
    first = opened()
    first.close()
    (path,) = files(folder)
    before = path.read_bytes()
    second = opened()
    second.close()
    assert clocks.calibrations == 1
    assert "launch 1000 us, element 1e+04 ns" in first.report[-1]
    assert "launch 1000 us, element 1e+04 ns" in second.report[-1]
    assert second.report[-1].endswith(f", kept in {path}")
    assert path.read_bytes() == before


def test_costs_learned_while_serving_are_kept(opened, folder):
    runtime = opened()
    before = kept(folder)["served"]["weight"]
    assert runtime.gauges()["cost_drift"] == 1
    serve(runtime, BATCH)
    counts = runtime.counts()
    assert counts.measured_seconds > 0
    assert counts.predicted_seconds > 0
    assert runtime.gauges()["cost_drift"] != 1
    runtime.close()
    assert (before, kept(folder)["served"]["weight"]) == (0, BATCH)


def test_another_graph_or_number_of_threads_is_measured_again(opened, folder, clocks):
    opened().close()
    opened(intra_op_threads="1").close()
    model = onnx.load(folder / "model.onnx")
    model.doc_string = "another"
    onnx.save(model, folder / "model.onnx")
    opened(intra_op_threads="1").close()
    assert clocks.calibrations == len(files(folder)) == 3


def test_an_unreliable_calibration_is_repeated_by_the_next_start(opened, folder, clocks):
    clocks.seconds = lambda rows, extents: 0.4  # then nothing is left for a second size
    runtime = opened()
    assert "unreliable, because" in runtime.report[-1]
    assert not files(folder)
    runtime.close()
    opened().close()
    assert clocks.calibrations == 2


def test_serving_replaces_an_unreliable_calibration(opened, folder, clocks):
    clocks.seconds = lambda rows, extents: 0.4
    runtime = opened()
    serve(runtime, BATCH)
    runtime.close()
    opened()
    assert clocks.calibrations == 1


def test_a_file_that_holds_something_else_is_ignored(opened, folder, clocks, caplog):
    opened().close()
    (path,) = files(folder)
    path.write_text(json.dumps({**kept(folder), "served": None}))
    runtime = opened()
    assert f"ignored {path}: found NoneType, expected an object" in caplog.text
    assert clocks.calibrations == 2
    assert "kept in" not in runtime.report[-1]


@pytest.mark.parametrize("parameter", ["cost_cache", "cost"])
def test_costs_are_not_kept_if_turned_off(opened, folder, parameter):
    off = {"cost_cache": "off", "cost": "launch_us=1, element_ns=1, element2_ns=0"}
    runtime = opened(**{parameter: off[parameter]})
    serve(runtime, BATCH)
    runtime.close()
    assert not files(folder)
