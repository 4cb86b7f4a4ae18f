"""The order in which gears of dims list the inputs, and its sources."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save
from runtime.support.ascend import compile_om
from runtime.support.graphs import onnx_model

import ge_runtime.npu.driver.om_model as looks
from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.atc import sha256_of
from ge_runtime.npu.driver.cann_values import GEAR_INPUT, ModelDescription, ModelTensor
from ge_runtime.npu.driver.om_model import ModelFile, dims_order
from ge_runtime.npu.engines.ascend_backend import AscendBackend


def graph(folder):
    """sum(a) + sum(b) for each row of two inputs that are alike: a [n, s] and b [n, t]."""
    model = onnx_model(
        [
            helper.make_node("ReduceSum", ["a", "axis"], ["left"]),
            helper.make_node("ReduceMax", ["b"], ["right"], axes=[1]),
            helper.make_node("Sub", ["left", "right"], ["y"]),
        ],
        [("a", TensorProto.FLOAT, ["n", "s"]), ("b", TensorProto.FLOAT, ["n", "t"])],
        [("y", TensorProto.FLOAT, ["n", 1])],
        {"axis": np.array([1])},
    )
    save(model, folder / "model.onnx")


def other_order(folder, gears):
    """Compiled by another team: --input_shape names b before a."""
    graph(folder)
    flags = ["--input_format=ND", "--input_shape=b:-1,-1;a:-1,-1", f"--dynamic_dims={gears}"]
    return compile_om(folder, *flags)


def shapes_of(path):
    place = AscendBackend(0)
    try:
        engine = place.open([Artifact(path, "om", "")], threads=1, outputs=())
        try:
            engine.bind([], place.memory)
            for shapes in engine.shapes:
                given = {
                    name: np.random.default_rng(1).random(dims, np.float32)
                    for name, dims in shapes.items()
                }
                expected = given["a"].sum(1, keepdims=True) - given["b"].max(1, keepdims=True)
                result = engine.run(given, {"y": None})["y"]
                np.testing.assert_allclose(result, expected, rtol=1e-5)
            return [(own["a"], own["b"]) for own in engine.shapes]
        finally:
            engine.close()
    finally:
        place.close()


def test_an_order_that_sizes_give_away_is_found(tmp_path):
    """b is the longer one: its bytes hold no gear of the other order."""
    path = other_order(tmp_path, "1,8,1,2;4,16,4,4")
    assert shapes_of(path) == [((1, 2), (1, 8)), ((4, 4), (4, 16))]


def test_an_ambiguous_order_is_refused_and_a_record_resolves_it(tmp_path):
    path = other_order(tmp_path, "1,8,1,2;1,2,1,8;1,8,1,8")
    with pytest.raises(ArtifactFault) as reported:
        shapes_of(path)
    assert "that fit several orders of inputs, a, b or b, a, expected model.om.json" in str(
        reported.value
    )
    record = {"om_sha256": sha256_of(path), "flags": ["--input_shape=b:-1,-1;a:-1,-1"]}
    (tmp_path / "model.om.json").write_text(json.dumps(record))
    expected = [((1, 2), (1, 8)), ((1, 8), (1, 2)), ((1, 8), (1, 8))]
    assert sorted(shapes_of(path)) == expected
    (tmp_path / "model.om.json").write_text(json.dumps({**record, "om_sha256": "of another"}))
    with pytest.raises(ArtifactFault, match="that fit several orders of inputs"):
        shapes_of(path)


def test_a_record_that_does_not_fit_is_refused(tmp_path):
    path = other_order(tmp_path, "1,8,1,2;4,16,4,4")
    for flag in ("--input_shape=a:-1,-1;b:-1,-1", "--input_shape=b:-1,-1", "--input_shape=c:1"):
        record = {"om_sha256": sha256_of(path), "flags": [flag]}
        (tmp_path / "model.om.json").write_text(json.dumps(record))
        with pytest.raises(ArtifactFault, match=r"model\.om\.json: found --input_shape="):
            shapes_of(path)


def described(*inputs, gears):
    tensors = [ModelTensor(name, 0, 2, dims, nbytes) for name, dims, nbytes in inputs]
    gear = ModelTensor(GEAR_INPUT, 9, 2, (2,), 16)
    return ModelDescription((*tensors, gear), (), dims=gears)


def order_of(tmp_path, description):
    return dims_order(ModelFile(tmp_path / "model.om", "", 0, 0, None), description)


def test_inputs_of_one_size_may_be_left_out_of_gears(tmp_path):
    fixed, open_ = ("table", (3, 5), 60), ("x", (-1, 4), 128)
    assert order_of(tmp_path, described(fixed, open_, gears=((2, 4), (8, 4)))) == (1,)
    both = described(fixed, open_, gears=((3, 5, 2, 4), (3, 5, 8, 4)))
    assert order_of(tmp_path, both) == (0, 1)
    turned = described(fixed, open_, gears=((2, 4, 3, 5), (8, 4, 3, 5)))
    assert order_of(tmp_path, turned) == (1, 0)
    assert turned.shapes((1, 0))[2, 4, 3, 5] == ((3, 5), (2, 4))


def test_gears_in_no_order_are_refused(tmp_path):
    with pytest.raises(ArtifactFault, match=r"found gears, e\.g\. 2,5, expected the dims of x in"):
        order_of(tmp_path, described(("x", (-1, 4), 128), gears=((2, 5),)))


def test_inputs_of_open_sizes_may_not_be_left_out_of_gears(tmp_path):
    both = described(("x", (-1, 4), 128), ("y", (-1, 4), 128), gears=((2, 4), (8, 4)))
    with pytest.raises(ArtifactFault, match="expected the dims of x, y in some order"):
        order_of(tmp_path, both)


def test_inputs_that_are_alike_may_stand_in_any_order(tmp_path):
    alike = [(name, (-1, -1), 128) for name in "abc"]
    assert order_of(tmp_path, described(*alike, gears=((2, 4) * 3, (1, 8) * 3))) == (0, 1, 2)


def test_more_orders_than_can_be_looked_at_are_refused(tmp_path):
    alike = [(f"x{i}", (-1, -1), 128) for i in range(9)]
    with pytest.raises(ArtifactFault, match="or another, expected"):
        order_of(tmp_path, described(*alike, gears=((2, 4) * 9, (1, 8) * 9)))


def test_all_orders_are_looked_at_up_to_the_most_steps(tmp_path, monkeypatch):
    alike = [(name, (-1, -1), 128) for name in "abc"]
    model = described(*alike, gears=((2, 4) * 3, (1, 8) * 3))
    monkeypatch.setattr(looks, "_MOST_STEPS", 1 + 3 + 6 + 6)  # of none, one, two and all three
    assert order_of(tmp_path, model) == (0, 1, 2)
    monkeypatch.setattr(looks, "_MOST_STEPS", 15)
    with pytest.raises(ArtifactFault, match="or another, expected"):
        order_of(tmp_path, model)


def test_models_without_gears_of_dims_have_no_order(tmp_path):
    tensor = ModelTensor("x", 0, 2, (-1, 4), 128)
    assert order_of(tmp_path, ModelDescription((tensor,), (), batches=(1, 8))) == ()


def test_equal_files_with_other_records_have_other_shapes(tmp_path):
    """The record next to a file has the order of the inputs in its gears."""
    om = other_order(tmp_path, "1,8,1,2;1,8,1,8")
    (tmp_path / "copy").mkdir()
    other = Path(shutil.copy(om, tmp_path / "copy"))
    place, engines = AscendBackend(0), []
    for path, order in ((om, "b:-1,-1;a:-1,-1"), (other, "a:-1,-1;b:-1,-1")):
        record = {"om_sha256": sha256_of(path), "flags": [f"--input_shape={order}"]}
        path.with_name("model.om.json").write_text(json.dumps(record))
        engines.append(place.open([Artifact(path, "om", "")], threads=1, outputs=()))
    shapes = [{own["a"] for own in engine.shapes} for engine in engines]
    assert shapes == [{(1, 2), (1, 8)}, {(1, 8)}]
    for engine in engines:
        engine.close()
    place.close()
