"""Compiled files that are alike in everything but one item each give their own answers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save
from runtime.support.ascend import compile_om
from runtime.support.graphs import onnx_model

from ge_runtime.engines.artifact import Artifact
from ge_runtime.npu.driver.atc import sha256_of
from ge_runtime.npu.engines.ascend_backend import AscendBackend


def product(factor):
    return onnx_model(
        [helper.make_node("Mul", ["x", "k"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"])],
        [("y", TensorProto.FLOAT, ["n"])],
        {"k": np.array([factor], np.float32)},
    )


@pytest.fixture
def opened_on_card():
    place = AscendBackend(0)
    engines = []

    def open_om(path):
        engines.append(place.open([Artifact(path, "om", "")], threads=1, outputs=()))
        engines[-1].bind([], place.memory)
        return engines[-1]

    yield open_om
    for engine in engines:
        engine.close()
    place.close()


def test_compiled_files_with_other_weights(opened_on_card, tmp_path):
    engines = []
    for factor in (2.0, 3.0):
        (tmp_path / f"{factor}").mkdir()
        save(product(factor), tmp_path / f"{factor}" / "model.onnx")
        om = compile_om(tmp_path / f"{factor}", "--input_format=ND", "--input_shape=x:1")
        engines.append(opened_on_card(om))
    x = np.ones(1, np.float32)
    found = [engine.run({"x": x}, {"y": None})["y"].item() for engine in engines]
    assert found == [2.0, 3.0]


def test_equal_compiled_files_with_other_records(opened_on_card, tmp_path):
    """The record next to a file has the order of the inputs in its gears."""
    model = onnx_model(
        [
            helper.make_node("ReduceMax", ["a"], ["left"], axes=[1]),
            helper.make_node("ReduceMax", ["b"], ["right"], axes=[1]),
            helper.make_node("Sub", ["left", "right"], ["y"]),
        ],
        [("a", TensorProto.FLOAT, ["n", "s"]), ("b", TensorProto.FLOAT, ["n", "t"])],
        [("y", TensorProto.FLOAT, ["n", 1])],
    )
    (tmp_path / "a").mkdir()
    save(model, tmp_path / "a" / "model.onnx")
    flags = ["--input_format=ND", "--input_shape=b:-1,-1;a:-1,-1"]
    om = compile_om(tmp_path / "a", *flags, "--dynamic_dims=1,8,1,2;1,8,1,8")
    (tmp_path / "b").mkdir()
    other = Path(shutil.copy(om, tmp_path / "b"))
    shapes = []
    for path, order in ((om, "b:-1,-1;a:-1,-1"), (other, "a:-1,-1;b:-1,-1")):
        record = {"om_sha256": sha256_of(path), "flags": [f"--input_shape={order}"]}
        path.with_name("model.om.json").write_text(json.dumps(record))
        shapes.append({own["a"] for own in opened_on_card(path).shapes})
    assert shapes == [{(1, 2), (1, 8)}, {(1, 8)}]
