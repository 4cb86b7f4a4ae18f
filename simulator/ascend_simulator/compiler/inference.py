"""The type and dims of every value in a graph at given input shapes.

onnx infers most of them. If a dim depends on values that themselves depend on shapes, onnx's
reference evaluator computes those values, one small node at a time, and onnx infers again. Dims
that are still unknown depend on data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ascend_simulator.models.om import Dims

ModelProto: TypeAlias = Any
GraphProto: TypeAlias = Any
NodeProto: TypeAlias = Any
TensorType: TypeAlias = Any  # a TypeProto.Tensor
Constants: TypeAlias = dict[str, NDArray[Any]]

_MOST_ELEMENTS: Final = 1024
"""The maximum elements of a value that may determine a size: a shape, an index, a list of axes."""
_RANDOM: Final = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform")
) | {"RandomUniformLike"}


@dataclass(frozen=True, slots=True)
class Value:
    """The known type and dims of one value."""

    kind: int
    """TensorProto.DataType; 0 if unknown, or if the value is not a tensor."""
    dims: Dims | None
    """None if the dims depend on data."""


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """Return the graphs in the attributes of this node, such as the branches of an If."""
    return [
        graph
        for attribute in node.attribute
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
    ]


class Inference:
    """Inference for one graph at any number of input shapes."""

    def __init__(self, model: ModelProto) -> None:
        """Prepare the graph. Large initializers of `model` may lack elements."""
        graph = model.graph
        initialized = {each.name for each in graph.initializer}
        self._inputs = [each for each in graph.input if each.name not in initialized]
        self._bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        self._bare.graph.name = graph.name
        self._bare.graph.node.extend(graph.node)
        self._bare.graph.output.extend(graph.output)
        for tensor in graph.initializer:
            if math.prod(tensor.dims) <= _MOST_ELEMENTS:
                self._bare.graph.initializer.append(tensor)
            else:
                stand_in = onnx.helper.make_tensor_value_info(
                    tensor.name, tensor.data_type, tensor.dims
                )
                self._bare.graph.input.append(stand_in)

    def at(self, shapes: Mapping[str, Dims] | None) -> dict[str, Value]:
        """Return all values by name at these input shapes. Raises onnx's exceptions.

        `shapes` is by input; None infers only what is equal at all shapes: types, and some dims.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._bare)
        if shapes is None:
            model.graph.input.extend(self._inputs)
            return _infer(model)
        for value in self._inputs:
            kind = value.type.tensor_type.elem_type
            fixed = onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name])
            model.graph.input.append(fixed)
        while True:
            values = _infer(model)
            if not _fold(model, values):
                return values


def _infer(model: ModelProto) -> dict[str, Value]:
    # Strict mode raises for contradictory dims. Values that cannot be inferred stay unknown.
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    values = {
        value.name: _value(value.type.tensor_type)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    for tensor in graph.initializer:
        values[tensor.name] = Value(tensor.data_type, tuple(tensor.dims))
    return values


def _value(tensor: TensorType) -> Value:
    if not tensor.HasField("shape"):
        return Value(tensor.elem_type, None)
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return Value(tensor.elem_type, None if -1 in dims else dims)


def _fold(model: ModelProto, values: Mapping[str, Value]) -> bool:
    """Replace nodes whose results depend on shapes by constants; return whether any was."""
    constants: Constants = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
    }
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    kept = []
    for node in model.graph.node:
        results = _computed(node, constants, values, opsets)
        if results is None:
            kept.append(node)
            continue
        for name, array in results.items():
            constants[name] = array
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    if len(kept) == len(model.graph.node):
        return False
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return True


def _computed(
    node: NodeProto, constants: Constants, values: Mapping[str, Value], opsets: Mapping[str, int]
) -> Constants | None:
    """Return the node's results by name; None if they depend on more than shapes, or are large."""
    if any(_elements(values.get(name)) > _MOST_ELEMENTS for name in node.output if name):
        return None
    if node.op_type in ("Shape", "Size"):
        value = values.get(node.input[0])
        if value is None or value.dims is None:
            return None
        # A constant of this shape, all of whose bytes are equal.
        inputs: Constants = {node.input[0]: np.broadcast_to(np.int8(0), value.dims)}
    elif node.op_type in _RANDOM or not all(name in constants for name in node.input if name):
        return None
    else:
        inputs = {name: constants[name] for name in node.input if name}
    graph = onnx.GraphProto(
        node=[node],
        input=[onnx.ValueInfoProto(name=name) for name in inputs],
        output=[onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    try:
        found = ReferenceEvaluator(graph, dict(opsets)).run(None, inputs)
        arrays = [np.asarray(array) for array in found]
    except Exception:  # operators raise various exceptions: the value stays unknown
        return None
    if any(array.size > _MOST_ELEMENTS or array.dtype == object for array in arrays):
        return None
    return dict(zip(filter(None, node.output), arrays, strict=True))


def _elements(value: Value | None) -> int:
    return 0 if value is None or value.dims is None else math.prod(value.dims)
