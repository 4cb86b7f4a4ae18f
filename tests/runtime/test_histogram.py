"""Request sizes recorded while serving, and gears derived from them at load."""

import contextlib

import numpy as np
import pytest
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, write

from ge_runtime import Runtime
from ge_runtime.planning.histogram import Histogram

RECORDING = {
    "cost": "launch_us=100, element_ns=100, element2_ns=0",
    "histogram": "sizes.json",
    "gears.tokens": "auto 2",
}


@pytest.fixture
def folder(tmp_path):
    write(ENCODER, "onnxruntime", tmp_path)
    return tmp_path


@pytest.fixture
def opened(folder):
    with contextlib.ExitStack() as stack:

        def open_runtime(parameters=RECORDING):
            config = encoder_config(parameters)
            runtime = Runtime.open(folder, config, instance_name="recording_0")
            stack.callback(runtime.close)
            return runtime

        yield open_runtime


def text(length, rows=1):
    ids = np.ones((rows, 32), np.int64)
    return {"input_ids": ids, "lengths": np.full((rows, 1), length, np.int32)}


def serve(runtime, *lengths):
    for length in lengths:
        runtime.infer([text(length)])


def test_sizes_are_recorded_when_the_model_is_unloaded(opened, folder):
    runtime = opened()
    serve(runtime, 3, 3, 7)
    runtime.infer([text(5, rows=2)])
    assert not (folder / "sizes.json").exists()
    runtime.close()
    histogram = Histogram.load(folder / "sizes.json")
    assert histogram.axes == ("batch", "tokens")
    assert histogram.counts() == {(1, 3): 2, (1, 7): 1, (2, 5): 1}


def test_gears_are_derived_from_recorded_sizes(opened):
    first = opened()
    serve(first, *[5] * 150, 32)
    first.close()
    runtime = opened()
    serve(runtime, 5, 6)
    assert runtime.counts().gear_hits == {"tokens 5": 1, "tokens 32": 1}
    assert any('gears.tokens = "5, 32"' in line for line in runtime.report)


def test_drift_shows_that_sizes_differ_from_those_of_the_gears(opened):
    first = opened()
    serve(first, *[5] * 150)
    first.close()
    same, other = opened(), opened()
    serve(same, *[5] * 20)
    serve(other, *[30] * 20)
    assert same.gauges()["size_drift"] == 0
    assert other.gauges()["size_drift"] == 1


def test_a_failed_histogram_write_does_not_prevent_closing(opened, folder, caplog):
    runtime = opened({**RECORDING, "histogram": "missing/sizes.json"})
    serve(runtime, 3)
    runtime.close()
    assert "the histogram cannot be written" in caplog.text
    assert not runtime.is_ready()
