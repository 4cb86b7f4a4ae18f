import math
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import ENCODER, NONZERO, onnx_model

from ge_runtime.engines.analysis import Operation, intermediates
from ge_runtime.engines.analysis.onnx_file import OnnxFile
from ge_runtime.engines.analysis.onnx_graph import OnnxGraph, ShapeValues
from ge_runtime.memory.lifetimes import Intermediates, Lifetime, pack

REPOSITORY = Path(__file__).parents[4] / "model_repository"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def graph_of(model):
    return OnnxGraph(onnx, OnnxFile(model.SerializeToString(), 0))


def tiny(nodes, constants=None, y=("n", 4)):
    """x [n, 4] to y, through `nodes`."""
    return onnx_model(nodes, [("x", FLOAT, ["n", 4])], [("y", FLOAT, list(y))], constants)


def held(model, **shapes):
    """Return name: (bytes, first step, last step) of a graph's intermediate results."""
    found = graph_of(model).intermediates(shapes)
    assert not found.unsized
    return {each.name: (each.nbytes, each.first, each.last) for each in found.lifetimes}


def test_results_have_the_bytes_and_lifetimes_of_the_graph():
    assert held(ENCODER.onnx(), input_ids=(2, 5), attention_mask=(2, 5)) == {
        "tokens": (2 * 5 * 4 * 4, 0, 3),
        "mask": (2 * 5 * 4, 1, 5),  # `column` shows its bytes, and is read in step 3
        "kept": (2 * 5 * 4 * 4, 3, 4),
        "sum": (2 * 4 * 4, 4, 6),
        "count": (2 * 4, 5, 6),
    }


@pytest.mark.parametrize(
    ("view", "constants"),
    [
        (node("Reshape", ["a", "shape"], ["b"]), {"shape": np.array([-1])}),
        (node("Flatten", ["a"], ["b"]), {}),
        (node("Identity", ["a"], ["b"]), {}),
        (node("Unsqueeze", ["a", "axis"], ["b"]), {"axis": np.array([0])}),
        (node("Squeeze", ["a", "axis"], ["b"]), {"axis": np.array([0])}),
    ],
    ids=lambda value: getattr(value, "op_type", ""),
)
def test_view_takes_no_bytes_of_its_own(view, constants):
    nodes = [node("Relu", ["x"], ["a"]), view, node("Neg", ["x"], ["c"]), node("Exp", ["b"], ["y"])]
    rows = 1 if view.op_type == "Squeeze" else 3
    model = tiny(nodes, constants, y=[None] * 2)
    assert held(model, x=(rows, 4)) == {"a": (rows * 16, 0, 3), "c": (rows * 16, 2, 2)}


def test_view_that_is_an_output_is_a_copy_into_the_callers_memory():
    nodes = [node("Relu", ["x"], ["a"]), node("Flatten", ["a"], ["y"]), node("Neg", ["a"], ["b"])]
    assert held(tiny(nodes[:2]), x=(3, 4)) == {"a": (48, 0, 1)}
    assert held(tiny(nodes), x=(3, 4)) == {"a": (48, 0, 2), "b": (48, 2, 2)}


def test_names_of_input_sizes_hold_for_what_the_file_says_of_results():
    """An operator that onnx does not know; the file declares its result's shape."""
    model = tiny([node("Own", ["x"], ["a"], domain="own"), node("Relu", ["a"], ["y"])])
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert graph_of(model).intermediates({"x": (3, 4)}) == Intermediates((), unsized=1)
    model.graph.value_info.append(helper.make_tensor_value_info("a", FLOAT, ["n", 8]))
    assert held(model, x=(3, 4)) == {"a": (96, 0, 1)}


def test_graph_that_onnx_refuses_has_no_sizes():
    """onnxruntime needs no opset_import for its own operators; onnx does for all."""
    model = tiny([node("Gelu", ["x"], ["a"], domain="com.microsoft"), node("Relu", ["a"], ["y"])])
    assert graph_of(model).intermediates({"x": (3, 4)}) == Intermediates((), unsized=1)


def test_a_size_that_depends_on_data_is_counted():
    nodes = [node("NonZero", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    model = onnx_model(nodes, [("x", FLOAT, ["n"])], [("y", INT64, [1, None])])
    assert graph_of(model).intermediates({"x": (9,)}) == Intermediates((), unsized=1)
    assert graph_of(NONZERO.onnx()).intermediates({"x": (9,)}) == Intermediates(())


def test_branches_read_outer_values_and_have_results_without_a_size():
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(operator, ["a"], [f"{name}_inner"]), node("Neg", [f"{name}_inner"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, FLOAT, ["n", 4])],
        )
        for name, operator in {"then": "Relu", "else": "Exp"}.items()
    }
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Neg", ["x"], ["b"]),
        node("If", ["c"], ["y"], **branches),
    ]
    model = tiny(nodes)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    found = graph_of(model).intermediates({"x": (2, 4), "c": ()})
    lifetimes = (Lifetime("a", 32, 0, 2), Lifetime("b", 32, 1, 1))
    assert found == Intermediates(lifetimes, unsized=4)


def test_without_the_package_onnx_nothing_is_known(monkeypatch):
    file = OnnxFile(ENCODER.onnx().SerializeToString(), 0)
    assert OnnxGraph.read(file) is not None
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert OnnxGraph.read(file) is None


# -- the repository's own models --------------------------------------------------------------


def packed(model, shapes):
    path = REPOSITORY / model / "1" / "model.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not built: make models")
    found = OnnxGraph.read(OnnxFile.read(path)).intermediates(shapes)
    assert found.unsized == 0
    assert len(found.lifetimes) > 100
    return pack(found.lifetimes)


@pytest.mark.parametrize("shape", [(1, 1), (3, 77), (64, 512)])
def test_encoder_is_packed_into_its_lower_bound(shape):
    packing = packed("text_encoder", {"input_ids": shape, "attention_mask": shape})
    assert packing.peak == packing.lower_bound
    # Attention scores, 12 heads of them, before and after one step of their softmax.
    assert packing.peak >= 2 * 12 * math.prod(shape) * shape[1] * 4


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 37, 200)])
def test_image_classifier_is_packed_into_its_lower_bound(shape):
    rows, *sides = shape
    packing = packed("ge_classifier", {"image": (rows, 1, *sides), "mask": shape})
    assert packing.peak == packing.lower_bound


SIZES = dict.fromkeys("abcdefg", 10)


def spans(found):
    return {each.name: (each.first, each.last) for each in found.lifetimes}


def test_value_lives_from_its_operation_to_its_last_reader():
    operations = [
        Operation(("x",), ("a",)),
        Operation(("a",), ("b",)),
        Operation(("b",), ("c",)),
        Operation(("a", "c"), ("d",)),
    ]
    found = intermediates(operations, SIZES, elsewhere={"d"})
    assert spans(found) == {"a": (0, 3), "b": (1, 2), "c": (2, 3)}


def test_delivered_value_lives_past_the_last_operation():
    operations = [Operation(("x",), ("a",)), Operation(("x",), ("b",))]
    found = intermediates(operations, SIZES, elsewhere=(), delivered=("a",))
    assert spans(found) == {"a": (0, 2), "b": (1, 1)}


def test_views_keep_the_bytes_that_they_show_alive():
    operations = [
        Operation(("x",), ("a",)),
        Operation(("a",), ("b",), view_of="a"),
        Operation(("b",), ("c",), view_of="b"),
        Operation(("x",), ("d",)),
        Operation(("c", "d"), ("e",)),
    ]
    found = intermediates(operations, SIZES, elsewhere={"e"})
    assert spans(found) == {"a": (0, 4), "d": (3, 4)}


def test_view_of_what_lies_elsewhere_takes_nothing():
    operations = [Operation(("x",), ("a",), view_of="x"), Operation(("a",), ("b",))]
    assert intermediates(operations, SIZES, elsewhere={"b"}) == Intermediates(())


def test_values_without_a_size_are_counted():
    operations = [Operation(("x",), ("a", "unknown")), Operation(("unknown",), ("other",))]
    found = intermediates(operations, SIZES, elsewhere=())
    assert found == Intermediates((Lifetime("a", 10, 0, 0),), unsized=2)


def values_of(nodes, constants, shapes):
    model = onnx_model(nodes, [("x", TensorProto.FLOAT, ["n", 4])], [], constants)
    return ShapeValues(onnx, model).compute(shapes)


def test_shapes_and_what_follows_from_them_are_computed():
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Constant", [], ["two"], value_int=2),
        node("Mul", ["rows", "two"], ["twice"]),
        node("Size", ["x"], ["size"]),
    ]
    shapes = {"x": (7, 4), "shape": (2,), "rows": (), "two": (), "twice": (), "size": ()}
    found = values_of(nodes, {"zero": np.array(0)}, shapes)
    assert {name: value.tolist() for name, value in found.items()} == {
        "shape": [7, 4],
        "rows": 7,
        "two": 2,
        "twice": 14,
        "size": 28,
    }


def test_what_depends_on_data_or_on_an_unknown_shape_is_not_computed():
    nodes = [
        node("Relu", ["x"], ["data"]),
        node("Shape", ["y"], ["unknown"]),
        node("Add", ["unknown", "one"], ["more"]),
        node("Add", ["one", "one"], ["sum"]),
    ]
    shapes = {"x": (1, 4), "data": (1, 4), "unknown": (2,), "more": (2,), "sum": ()}
    assert values_of(nodes, {"one": np.array(1)}, shapes).keys() == {"sum"}


def test_large_values_are_not_computed():
    nodes = [node("ConstantOfShape", ["shape"], ["zeros"]), node("Shape", ["zeros"], ["again"])]
    shapes = {"zeros": (2**10, 2**10), "again": (2,)}
    found = values_of(nodes, {"shape": np.array([2**10, 2**10])}, shapes)
    assert {name: value.tolist() for name, value in found.items()} == {"again": [2**10, 2**10]}


def test_operator_that_cannot_be_computed_leaves_its_value_unknown():
    nodes = [
        node("Own", ["one"], ["own"], domain="own"),
        node("Reshape", ["one", "three"], ["wrong"]),
        node("Add", ["one", "one"], ["sum"]),
    ]
    constants = {"one": np.array([1]), "three": np.array([3])}
    shapes = dict.fromkeys(("own", "wrong", "sum"), (1,))
    assert values_of(nodes, constants, shapes).keys() == {"sum"}


def test_operators_are_those_of_the_models_opset():
    """Up to opset 12 the axes of Unsqueeze are an attribute, from 13 on an input."""
    model = onnx_model(
        [node("Unsqueeze", ["one"], ["row"], axes=[0])], [], [], {"one": np.array([1])}
    )
    model.opset_import[0].version = 12
    found = ShapeValues(onnx, model).compute({"row": (1, 1)})
    assert found["row"].tolist() == [[1]]
