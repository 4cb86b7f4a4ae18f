"""What an ONNX graph holds between its inputs and outputs, by shape inference at given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from ge_runtime.engines.analysis.dataflow import Operation, intermediates
from ge_runtime.engines.analysis.onnx_file import OnnxFile, nbytes
from ge_runtime.engines.analysis.onnx_values import ShapeValues
from ge_runtime.memory.lifetimes import Intermediates

# The package onnx and its messages, which come without types.
Onnx: TypeAlias = Any
ModelProto: TypeAlias = Any
NodeProto: TypeAlias = Any

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
        """Of all results that follow from these of the inputs, by name."""
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
