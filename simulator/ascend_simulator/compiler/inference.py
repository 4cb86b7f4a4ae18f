"""The type, dims and device memory of every value in a graph at given input shapes.

The package onnx infers most types and dims. If a dim depends on a value that depends only on
shapes, the reference evaluator of onnx computes the value, and onnx infers again. Dims that are
still unknown depend on data. The device memory of a compiled model is overestimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
"""The maximum elements of a value that may determine a dim: a shape, an index, a list of axes."""
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
        """Prepare the graph. The elements of large initializers are not needed."""
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

        `shapes` has the dims of each input. With None only types, and dims that are equal at all
        shapes, are inferred.
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
    # Strict mode raises for contradictory dims. Dims that cannot be inferred stay unknown.
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
    """Replace nodes whose results depend only on shapes by constants. Return whether any was."""
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
    """Return a node's results by name; None if they do not depend only on shapes, or are large."""
    if any(_elements(values.get(name)) > _MOST_ELEMENTS for name in node.output if name):
        return None
    if node.op_type in ("Shape", "Size"):
        value = values.get(node.input[0])
        if value is None or value.dims is None:
            return None
        # An array of this shape that takes one byte of memory.
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


TensorProto: TypeAlias = Any

_STEP: Final = 32
_ALIGNMENT: Final = 512
FIXED_BYTES: Final = 1 << 20
"""Size of the tasks and descriptors of a model with a memory plan."""


@dataclass(frozen=True, slots=True)
class Step:
    """The names of the values that one node reads and makes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The offset and size of a value in the workspace, and its first and last step (inclusive)."""

    offset: int
    size: int
    first: int
    last: int


def occupied(nbytes: int) -> int:
    """Return the bytes that `nbytes` occupy in a block that operators use."""
    return _rounded(_rounded(nbytes, _STEP) + _STEP, _ALIGNMENT)


def values_bytes(steps: Sequence[Step], nbytes: Mapping[str, int], *, reuse: bool) -> int:
    """Return the bytes of all intermediate values, plus a node's own memory.

    A node's own memory is estimated as the size of the values that it reads and writes. `nbytes`
    has the sizes of the intermediate values: a value without a size is a constant, an input or an
    output. Without `reuse` each value has a place for the whole run.
    """
    placed = places(steps, nbytes, reuse=reuse)
    own = max((_touched(step, nbytes) for step in steps), default=0)
    return max((place.offset + place.size for place in placed.values()), default=0) + own


def places(
    steps: Sequence[Step], nbytes: Mapping[str, int], *, reuse: bool = True
) -> dict[str, Place]:
    """Return a place for each value; values that are needed at the same time never overlap.

    The largest value is placed first. Each value gets the lowest offset that is free in all its
    steps.
    """
    first = {name: index for index, step in enumerate(steps) for name in step.writes}
    last = dict(first)
    for index, step in enumerate(steps):
        last.update((name, index) for name in step.reads if name in first)
    placed: dict[str, Place] = {}
    for name in sorted(first.keys() & nbytes.keys(), key=lambda name: (-nbytes[name], name)):
        span = (first[name], last[name]) if reuse else (0, len(steps))
        size = occupied(nbytes[name])
        beside = [
            each for each in placed.values() if each.first <= span[1] and span[0] <= each.last
        ]
        placed[name] = Place(_lowest(size, beside), size, *span)
    return placed


def _lowest(size: int, taken: Iterable[Place]) -> int:
    offset = 0
    for place in sorted(taken, key=lambda place: place.offset):
        if offset + size <= place.offset:
            break
        offset = max(offset, place.offset + place.size)
    return offset


def _touched(step: Step, nbytes: Mapping[str, int]) -> int:
    return sum(occupied(nbytes[name]) for name in {*step.reads, *step.writes} & nbytes.keys())


def _rounded(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


# -- weights -------------------------------------------------------------------------------------


def weight_bytes(model: ModelProto) -> int:
    """Return the bytes of all constants, including those in nodes and subgraphs."""
    return sum(
        occupied(int(numpy_helper.to_array(tensor).nbytes)) for tensor in _constants(model.graph)
    )


def _constants(graph: GraphProto) -> list[TensorProto]:
    found = list(graph.initializer)
    for sparse in graph.sparse_initializer:
        found += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.append(attribute.t)
            found.extend(attribute.tensors)
        for inner in subgraphs(node):
            found += _constants(inner)
    return found
