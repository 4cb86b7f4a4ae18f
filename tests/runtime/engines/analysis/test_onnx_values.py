import numpy as np
import onnx
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model

from ge_runtime.engines.analysis.onnx_graph import ShapeValues

node = helper.make_node


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
