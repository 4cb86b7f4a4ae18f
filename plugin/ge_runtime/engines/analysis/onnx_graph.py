"""What an ONNX graph holds between its inputs and outputs, by shape inference at given sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.engines.analysis import Operation, intermediates
from ge_runtime.engines.analysis.onnx_file import OnnxFile, nbytes
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array

# The package onnx, its messages and its evaluators, which come without types.
Onnx: TypeAlias = Any
ModelProto: TypeAlias = Any
NodeProto: TypeAlias = Any
TensorProto: TypeAlias = Any
Evaluator: TypeAlias = Any

Shape: TypeAlias = tuple[int, ...]
Typed: TypeAlias = tuple[int, Shape]
"""A result's element type, as TensorProto.DataType numbers it, and its shape."""

_VIEWS: Final = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result is their first input in another shape."""


class OnnxGraph:
    """A graph that is parsed once and asked for any number of input shapes.

    Nodes run in the order of the file, and none writes its result over what it reads. Results of
    nodes inside a branch or a loop are unsized.

    onnxruntime goes its own way: it fuses nodes and reuses inputs, and it keeps scratch, copies in
    layouts of its own, and an arena that doubles. Resident memory that version 1.31 took for one
    execution, without and with its arena, in shares of what is told here: an encoder of 64x512
    tokens 0.91 and 1.25, a CNN of 64 images of 256x256 1.5 and 2.3.
    """

    def __init__(self, onnx: Onnx, file: OnnxFile) -> None:
        """onnx: the package. See `read`."""
        self._onnx = onnx
        self._model = onnx.ModelProto.FromString(file.model)
        self._values: ShapeValues | None = None  # once they are needed
        graph = self._model.graph
        self._outputs = frozenset(value.name for value in graph.output)
        # Constants are weights by another name: onnxruntime makes them so when it loads.
        self._operations = tuple(
            self._operation(node) for node in graph.node if node.op_type != "Constant"
        )
        self._results = frozenset(name for each in self._operations for name in each.writes)
        self._inside = sum(
            sum(map(bool, inner.output)) for node in graph.node for inner in _inner_nodes(node)
        )

    @classmethod
    def read(cls, file: OnnxFile) -> OnnxGraph | None:
        """The graph in `file`; None where the package onnx is not installed."""
        try:
            import onnx
            import onnx.shape_inference
        except ImportError:
            return None
        return cls(onnx, file)

    def intermediates(self, shapes: Mapping[str, Shape]) -> Intermediates:
        """What is held while the graph runs on inputs of these shapes, by name."""
        typed = self._typed(shapes)
        sizes = {name: size for name in typed if (size := nbytes(*typed[name])) is not None}
        # Outputs lie in the caller's memory, where even a view's elements have to be copied.
        found = intermediates(self._operations, sizes, elsewhere=self._outputs)
        return Intermediates(found.lifetimes, found.unsized + self._inside)

    def shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shapes of all results that follow from these of the inputs, by name."""
        return {name: shape for name, (_, shape) in self._typed(inputs).items()}

    def _operation(self, node: NodeProto) -> Operation:
        inner = [name for one in _inner_nodes(node) for name in one.input]
        is_view = node.op_type in _VIEWS and node.domain in ("", "ai.onnx")
        return Operation(
            reads=(*node.input, *inner),
            writes=tuple(name for name in node.output if name),
            shows=node.input[0] if is_view else None,
        )

    def _typed(self, shapes: Mapping[str, Shape]) -> dict[str, Typed]:
        """All results whose types and shapes follow from the shapes of the inputs."""
        model = self._model_at(shapes)
        typed = self._infer(model)
        values: set[str] = set()
        while not self._results <= typed.keys():
            self._values = self._values or ShapeValues(self._onnx, self._model)
            known = {**shapes, **{name: shape for name, (_, shape) in typed.items()}}
            more = {n: v for n, v in self._values.compute(known).items() if n not in values}
            if not more:
                break
            values.update(more)
            # Shape inference looks for values among the initializers.
            model.graph.initializer.extend(
                self._onnx.numpy_helper.from_array(value, name) for name, value in more.items()
            )
            typed.update(self._infer(model))
        return typed

    def _infer(self, model: ModelProto) -> dict[str, Typed]:
        inference = self._onnx.shape_inference
        try:
            graph = inference.infer_shapes(model, data_prop=True).graph
        except inference.InferenceError:
            return {}  # e.g. an operator of onnxruntime's own, which onnx knows nothing of
        typed = {}
        for value in (*graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            dims = tensor.shape.dim
            if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
                typed[value.name] = (tensor.elem_type, tuple(dim.dim_value for dim in dims))
        return typed

    def _model_at(self, shapes: Mapping[str, Shape]) -> ModelProto:
        """The model with these input shapes; sizes that the inputs name are known everywhere."""
        model = self._onnx.ModelProto()
        model.CopyFrom(self._model)
        named: dict[str, int] = {}
        for value in model.graph.input:
            if value.name in shapes:
                shape, sizes = value.type.tensor_type.shape, shapes[value.name]
                named.update(zip((dim.dim_param for dim in shape.dim), sizes, strict=False))
                shape.ClearField("dim")
                for size in sizes:
                    shape.dim.add(dim_value=size)
        named.pop("", None)
        for value in model.graph.value_info:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in named:
                    dim.dim_value = named[dim.dim_param]
        return model


def _inner_nodes(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes of the graphs that are attributes of this one, at any depth."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield inner
                yield from _inner_nodes(inner)


_MOST_ELEMENTS: Final = 1024
"""Of a value that can tell a size: a shape, an index, a list of axes."""

_OF_SHAPES: Final = frozenset({"Shape", "Size"})
"""Operators that look at the shape of their input, and not at its elements."""


class ShapeValues:
    """The values in a graph that follow from shapes alone, such as where a slice ends.

    Shape inference follows them through a few operators only. Where that is not enough, onnx's
    reference evaluator computes them, one small node after another, for any number of shapes.
    """

    def __init__(self, onnx: Onnx, model: ModelProto) -> None:
        """onnx: the package. model: its large tensors may lack their elements."""
        from onnx.reference import ReferenceEvaluator

        self._onnx = onnx
        self._evaluator: Any = ReferenceEvaluator
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._constants: dict[str, Array] = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in model.graph.initializer
            if _has_elements(tensor)
        }
        self._nodes = _without_data(model, self._constants)
        self._evaluators: dict[int, Evaluator] = {}  # by index of the node, once it was computed

    def compute(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """The results of nodes that follow from these shapes, by name; no large ones.

        shapes: of inputs and results, as far as they are known.
        """
        known = dict(self._constants)
        for index, node in enumerate(self._nodes):
            inputs = _inputs(node, known, shapes)
            if inputs is not None and all(_is_small(shapes.get(name)) for name in node.output):
                known.update(self._run(index, node, inputs))
        return {name: value for name, value in known.items() if name not in self._constants}

    def _run(self, index: int, node: NodeProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The node's results by name, or none if the evaluator cannot compute them."""
        onnx = self._onnx
        try:
            if index not in self._evaluators:
                graph = onnx.GraphProto(
                    node=[node],
                    input=[onnx.ValueInfoProto(name=name) for name in inputs],
                    output=[onnx.ValueInfoProto(name=name) for name in node.output],
                )
                self._evaluators[index] = self._evaluator(graph, self._opsets)
            results = self._evaluators[index].run(None, dict(inputs))
        except Exception:  # whatever an operator's implementation raises: its value stays unknown
            return {}
        return dict(zip(node.output, results, strict=True))


def _without_data(model: ModelProto, constants: Collection[str]) -> tuple[NodeProto, ...]:
    """The nodes that take nothing but constants, shapes, and what such nodes give."""
    known = set(constants)
    nodes = []
    for node in model.graph.node:
        if node.op_type in _OF_SHAPES or known.issuperset(filter(None, node.input)):
            known.update(node.output)
            nodes.append(node)
    return tuple(nodes)


def _inputs(
    node: NodeProto, known: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Array] | None:
    """What the node takes; None unless all of it is known."""
    names = {name for name in node.input if name}
    if node.op_type not in _OF_SHAPES:
        return {name: known[name] for name in names} if names <= known.keys() else None
    if not names <= shapes.keys():
        return None
    # Stand-ins of these shapes: all elements are one and the same byte.
    return {name: np.broadcast_to(np.int8(0), shapes[name]) for name in names}


def _is_small(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and math.prod(shape) <= _MOST_ELEMENTS


def _has_elements(tensor: TensorProto) -> bool:
    described = {"name", "dims", "data_type", "doc_string"}
    fields = {field.name for field, _ in tensor.ListFields()}
    return math.prod(tensor.dims) == 0 or not fields <= described
