"""The plain implementation lays out the same inputs as the runtime, for every kind of input."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.configs import model_config, tensor
from runtime.support.graphs import onnx_model

from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.testing.expected_answers import Reference
from ge_runtime.testing.model_under_test import ModelUnderTest, alone
from ge_runtime.testing.random_requests import RequestGenerator

KINDS = {
    "BATCH_ELEMENT_COUNT": ["n"],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": ["n"],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": ["m"],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": ["k"],
    "BATCH_ITEM_SHAPE": ["batch", 3],
    "BATCH_ITEM_SHAPE_FLATTEN": ["flat"],
}
PARAMETERS = {
    "axes.x": "height,width",
    "axes.y": "height,width",
    "limit.height": "6",
    "limit.width": "7",
    "axis_length.height": "heights",
    "pad.x": "7",
    "lengths.row_heights": "height",
    "positions.columns": "width",
    "offsets.height_offsets": "height",
}


def opened(tmp_path, parameters, *, lead=("batch",)):
    """Open a model whose graph takes every kind of generated input. lead: the first dims of x."""
    dims = [*lead, "height", "width", 2]
    node = helper.make_node("Identity", ["x"], ["y"])
    inputs = [
        ("x", TensorProto.FLOAT, dims),
        ("heights", TensorProto.INT32, ["batch", 1]),
        ("row_heights", TensorProto.INT64, ["batch"]),
        ("columns", TensorProto.INT64, ["batch", "width"]),
        ("height_offsets", TensorProto.INT64, ["offsets"]),
        *((kind, TensorProto.INT64, dims) for kind, dims in KINDS.items()),
    ]
    inputs += [
        (key.partition(".")[2], TensorProto.FLOAT, [*lead, *text.split(",")])
        for key, text in parameters.items()
        if key.startswith("mask.")
    ]
    onnx.save(onnx_model([node], inputs, [("y", TensorProto.FLOAT, dims)]), tmp_path / "model.onnx")
    config = model_config(
        [tensor("x", "FP32", [-1, -1, 2]), tensor("heights", "INT32", [1])],
        [tensor("y", "FP32", [-1, -1, 2])],
        {**PARAMETERS, **parameters},
        batch_input=[
            {"kind": kind, "target_name": [kind], "data_type": "TYPE_INT64", "source_input": ["x"]}
            for kind in KINDS
        ],
    )
    return ModelUnderTest.opened(tmp_path, config)


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("parameters", "lead"),
    [
        ({"mask.both": "height,width", "mask.one": "width"}, ("batch",)),
        ({"mask.both": "width,height", "gears.height,width": "2x3, 4x7, 6x7"}, ("batch",)),
        ({"mask.one": "height", "packing": "height"}, ()),
    ],
    ids=["free", "gears", "packed"],
)
def test_the_runtime_gives_the_graph_the_same_inputs_for_a_single_request(
    tmp_path, monkeypatch, parameters, lead
):
    taken, run = [], OnnxEngine.run

    def recording(engine, inputs, outputs):
        taken.append({name: array.copy() for name, array in inputs.items()})
        return run(engine, inputs, outputs)

    monkeypatch.setattr(OnnxEngine, "run", recording)
    with opened(tmp_path, parameters, lead=lead) as model:
        reference = Reference(model.parts)
        generator = RequestGenerator(model.parts.config, model.parts.gears, {})
        for seed in range(15):
            batch = generator.request_batch(np.random.default_rng(seed))
            taken.clear()
            answers = model.run(batch, alone, 0xFF).answers
            by_runtime = taken[: len(batch)]
            taken.clear()
            for request, answer in zip(batch, answers, strict=True):
                np.testing.assert_equal(answer, reference.answer(request))
            for own, other in zip(by_runtime, taken, strict=True):
                assert own.keys() == other.keys()
                for name in own:
                    assert own[name].dtype == other[name].dtype
                    np.testing.assert_array_equal(own[name], other[name], name)
