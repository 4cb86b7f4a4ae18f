"""Inputs with indices: a value that a table does not have is the request's fault."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model

from ge_runtime.engines.analysis.gather_indices import index_inputs
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import EngineFault, InvalidValue, RequestFault

IDS, POSITIONS = (("ids", TensorProto.INT64, ["n"]), ("positions", TensorProto.INT64, ["n"]))


def embeddings(*moves, name="words", computed=False):
    """Sums of two rows: of words by `ids`, moved by these operators, and of places."""
    node, last, nodes = helper.make_node, "ids", []
    for index, (operator, more) in enumerate(moves):
        inputs = [last, *([] if more is None else [f"more{index}"])]
        nodes.append(node(operator, inputs, [f"moved{index}"]))
        last = f"moved{index}"
    if computed:
        nodes.append(node("Add", [last, "one"], ["added"]))
        last = "added"
    nodes += [
        node("Gather", ["table", last], ["a"], name=name),
        node("Gather", ["places", "positions"], ["b"], name="places"),
        node("Add", ["a", "b"], ["y"]),
    ]
    constants = {
        "table": np.arange(8, dtype=np.float32),
        "places": np.arange(4, dtype=np.float32),
        "one": np.array([1]),
        **{f"more{i}": np.array(more) for i, (_, more) in enumerate(moves) if more is not None},
    }
    outputs = [("y", TensorProto.FLOAT, None)]
    return onnx_model(nodes, [IDS, POSITIONS], outputs, constants)


def run(tmp_path, model, ids, positions):
    onnx.save(model, tmp_path / "model.onnx")
    engine = OnnxEngine.open(tmp_path / "model.onnx", 1)
    try:
        return engine.run({"ids": np.array(ids), "positions": np.array(positions)}, {"y": None})
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["words", ""])
@pytest.mark.parametrize(
    "moves", [(), [("Identity", None)], [("Unsqueeze", [0]), ("Squeeze", [0]), ("Reshape", [-1])]]
)
def test_a_value_that_the_table_does_not_have_is_named(tmp_path, name, moves):
    with pytest.raises(InvalidValue) as raised:
        run(tmp_path, embeddings(*moves, name=name), [3, 7, 9], [0, 1, 2])
    assert str(raised.value).startswith(
        "input 'ids': found 9 at [2], expected -8 to 7. The failure was: onnxruntime: "
    )
    assert "indices element out of data bounds, idx=9" in str(raised.value)
    assert isinstance(raised.value, RequestFault)


def test_each_table_has_its_own_input(tmp_path):
    with pytest.raises(InvalidValue, match=r"^input 'positions': found 5 at \[1\], expected -4 to"):
        run(tmp_path, embeddings(), [5, 3], [0, 5])


def test_an_index_that_the_graph_computes_is_a_fault_of_the_engine(tmp_path):
    with pytest.raises(EngineFault) as raised:
        run(tmp_path, embeddings(computed=True), [7, 8], [0, 0])
    assert not isinstance(raised.value, RequestFault)
    assert str(raised.value).startswith("onnxruntime: ")


def test_inputs_of_a_named_node_or_of_all():
    model = embeddings(("Identity", None)).SerializeToString()
    assert index_inputs(model, "words") == {"ids"}
    assert index_inputs(model, "places") == {"positions"}
    assert index_inputs(model, "fused") == {"ids", "positions"}
