"""The load check refuses defects in rewritten graphs, and defects of a rewrite itself."""

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from runtime.rewriting.encoders import exported, write
from runtime.support.configs import model_config, tensor
from runtime.verification.defects import DEFECTS, ROWS

from ge_runtime import Runtime
from ge_runtime.errors import ConfigFault
from ge_runtime.rewriting import int8
from ge_runtime.rewriting.unpad import unpad

# The threshold lies outside the values of embeddings.
IN_GRAPH = [
    name
    for name, (family, _) in DEFECTS.items()
    if family is ROWS and name != "a threshold over the batch"
]
REFUSED = re.compile("request alone|other requests|whose answer")
CONFIG = model_config(
    [tensor("input_ids", "INT64", [-1], allow_ragged_batch=True)],
    [tensor("embedding", "FP32", [16])],
    {
        "axes.input_ids": "tokens",
        "limit.tokens": "12",
        "mask.attention_mask": "tokens",
        "range.input_ids": "0..39",
        "cost": "launch_us=100, element_ns=100, element2_ns=0",
        "intra_op_threads": "1",
    },
    name="seeded",
)


def with_defect(body):
    """Return the content of an encoder whose embeddings see each other."""
    model = onnx.load_from_string(exported("minilm"))
    nodes = list(ROWS.model(body).graph.node)
    for own in nodes:
        for names in (own.input, own.output):
            names[:] = [
                {"x": "clean", "y": "embedding"}.get(name, f"seeded/{name}") for name in names
            ]
    for own in model.graph.node:
        own.output[:] = ["clean" if name == "embedding" else name for name in own.output]
    model.graph.node.extend(nodes)
    return model.SerializeToString()


def rewritten(folder, content, in_int8):
    """Return the graph without padding, and in INT8."""
    model = unpad(write(folder, content)).model
    if in_int8:
        int8.quantize(model, int8.find_layers(model), {})
    return model


@pytest.fixture
def small_layers(monkeypatch):
    monkeypatch.setattr(int8, "_SMALLEST", 1)


def load(folder, model):
    """Load the graph; return the line of the load check."""
    onnx.save(model, folder / "model.onnx")
    runtime = Runtime.open(folder, CONFIG, instance_name="seeded_0")
    runtime.close()
    return next(line for line in runtime.report if "load check" in line)


def one_scale(model):
    """Compute one scale for all rows, as DynamicQuantizeLinear does."""
    for node in model.graph.node:
        if node.op_type in ("ReduceMax", "ReduceMin") and node.output[0].startswith("int8/"):
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("keepdims", 1))


def wrong_place(model):
    """Read the first token of a row from the end of the last row."""
    (ends,) = (node for node in model.graph.node if node.op_type == "CumSum")
    (places,) = (
        node for node in model.graph.node if node.input and node.input[0] == ends.output[0]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(2, np.int64), "wrong"))
    places.input[1] = "wrong"


def no_mask(model):
    """Let attention see the padding."""
    for node in model.graph.node:
        if node.op_type == "Softmax":
            add = next(own for own in model.graph.node if own.output[0] == node.input[0])
            node.input[0] = add.input[0]


OF_REWRITES = {own.__name__: own for own in (one_scale, wrong_place, no_mask)}


@pytest.mark.usefixtures("small_layers")
@pytest.mark.parametrize("in_int8", [False, True])
def test_a_rewritten_graph_without_defect_loads(tmp_path, in_int8):
    model = rewritten(tmp_path, exported("minilm"), in_int8)
    assert "answers do not depend on" in load(tmp_path, model)
    # All layers share the zero points, and rows of tokens are not reshaped.
    added = [own.op_type for own in model.graph.node if own.output[0].startswith("int8/")]
    assert added.count("ConstantOfShape") == in_int8
    assert added.count("Reshape") == added.count("Max")


@pytest.mark.usefixtures("small_layers")
@pytest.mark.parametrize("name", IN_GRAPH)
def test_a_defect_of_the_graph_is_refused_after_both_rewrites(tmp_path, name):
    model = rewritten(tmp_path, with_defect(DEFECTS[name][1]), in_int8=True)
    with pytest.raises(ConfigFault, match=REFUSED):
        load(tmp_path, model)


@pytest.mark.usefixtures("small_layers")
@pytest.mark.parametrize("name", OF_REWRITES)
def test_a_defect_of_a_rewrite_is_refused(tmp_path, name):
    model = rewritten(tmp_path, exported("minilm"), in_int8=True)
    OF_REWRITES[name](model)
    with pytest.raises(ConfigFault, match=REFUSED):
        load(tmp_path, model)
