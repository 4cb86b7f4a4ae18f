"""The intermediate results of an ONNX graph, computed by shape inference at given sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.engines.analysis import Operation, intermediates
from ge_runtime.engines.analysis.onnx_file import OnnxFile, nbytes
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.specs import Array

# The package onnx, its messages and its evaluators, which have no type stubs.
Onnx: TypeAlias = Any
ModelProto: TypeAlias = Any
NodeProto: TypeAlias = Any
TensorProto: TypeAlias = Any
Evaluator: TypeAlias = Any

Shape: TypeAlias = tuple[int, ...]
Typed: TypeAlias = tuple[int, Shape]
"""A result's TensorProto.DataType and shape."""

UNPADDED: Final = "ge_runtime.unpadded"
"""The metadata key of a graph that removes padding; its value is the name of the mask."""

_VIEWS: Final = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result is a view of their first input."""


_INT64: Final = 7
"""TensorProto.DataType.INT64."""


class OnnxGraph:
    """A graph that is parsed once and analysed for any number of input shapes.

    Nodes are assumed to run in the order of the file and not in place. Results of nodes inside a
    branch or a loop are unsized.

    onnxruntime differs. It fuses nodes and reuses inputs. It also needs scratch memory, tensors in
    layouts of its own, and an arena that doubles. The resident memory of one execution of version
    1.31, relative to the analysis, is 0.91 without and 1.25 with its arena for an encoder of 64x512
    tokens, and 1.5 without and 2.3 with its arena for a CNN of 64 images of 256x256.
    """

    def __init__(self, onnx: Onnx, file: OnnxFile) -> None:
        """Parse the file; called by `read`. `onnx` is the package."""
        self._onnx = onnx
        self._model = onnx.ModelProto.FromString(file.model)
        self._values: ShapeValues | None = None  # once they are needed
        graph = self._model.graph
        metadata = {entry.key for entry in self._model.metadata_props}
        # NonZero finds the valid tokens; memory is planned as if all tokens were valid.
        self._nonzero = [n for n in graph.node if n.op_type == "NonZero" and UNPADDED in metadata]
        self._outputs = frozenset(value.name for value in graph.output)
        # Constant nodes are not operations: onnxruntime converts them to weights at load.
        self._operations = tuple(
            self._operation(node) for node in graph.node if node.op_type != "Constant"
        )
        self._results = frozenset(name for each in self._operations for name in each.writes)
        self._inside = sum(
            sum(map(bool, inner.output)) for node in graph.node for inner in _inner_nodes(node)
        )

    @classmethod
    def read(cls, file: OnnxFile) -> OnnxGraph | None:
        """Return the graph in `file`; None if the package onnx is not installed."""
        try:
            import onnx
            import onnx.shape_inference
        except ImportError:
            return None
        return cls(onnx, file)

    def intermediates(self, shapes: Mapping[str, Shape]) -> Intermediates:
        """Return the intermediate results for inputs of these shapes, by name."""
        typed = self._typed(shapes)
        sizes = {name: size for name in typed if (size := nbytes(*typed[name])) is not None}
        # Outputs are in the caller's memory, to which even the elements of views are copied.
        found = intermediates(self._operations, sizes, elsewhere=self._outputs)
        return Intermediates(found.lifetimes, found.unsized + self._inside)

    def shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of all results that follow from the shapes of the inputs, by name."""
        return {name: shape for name, (_, shape) in self._typed(inputs).items()}

    def flops(self, inputs: Mapping[str, Shape]) -> int:
        """Estimate the floating-point operations of an execution with inputs of these shapes.

        Bodies of branches and loops count once.
        """
        shapes = {tensor.name: tuple(tensor.dims) for tensor in self._model.graph.initializer}
        positions = max((math.prod(shape[:2]) for shape in inputs.values()), default=1)
        shapes |= {**inputs, **self.shapes(inputs)}
        graph = self._model.graph
        nodes = (*graph.node, *(inner for node in graph.node for inner in _inner_nodes(node)))
        return sum(_flops(node, shapes, positions) for node in nodes)

    def _operation(self, node: NodeProto) -> Operation:
        inner = [name for one in _inner_nodes(node) for name in one.input]
        is_view = node.op_type in _VIEWS and node.domain in ("", "ai.onnx")
        return Operation(
            reads=(*node.input, *inner),
            writes=tuple(name for name in node.output if name),
            view_of=node.input[0] if is_view else None,
        )

    def _typed(self, shapes: Mapping[str, Shape]) -> dict[str, Typed]:
        """Return the results whose types and shapes follow from the shapes of the inputs."""
        model = self._model_at(shapes)
        typed = self._infer(model)
        for node in self._nonzero:
            if node.input[0] in typed:
                shape = typed[node.input[0]][1]
                model.graph.value_info.append(
                    self._onnx.helper.make_tensor_value_info(
                        node.output[0], _INT64, (len(shape), math.prod(shape))
                    )
                )
        if self._nonzero:
            typed.update(self._infer(model))
        values: set[str] = set()
        while not self._results <= typed.keys():
            self._values = self._values or ShapeValues(self._onnx, self._model)
            known = {**shapes, **{name: shape for name, (_, shape) in typed.items()}}
            more = {n: v for n, v in self._values.compute(known).items() if n not in values}
            if not more:
                break
            values.update(more)
            # Shape inference reads values from the initializers.
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
            return {}  # e.g. an operator of onnxruntime, which the package onnx does not have
        typed = {}
        for value in (*graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            dims = tensor.shape.dim
            if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
                typed[value.name] = (tensor.elem_type, tuple(dim.dim_value for dim in dims))
        return typed

    def _model_at(self, shapes: Mapping[str, Shape]) -> ModelProto:
        """Return the model with these input shapes; symbols of inputs become sizes everywhere."""
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
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield inner
                yield from _inner_nodes(inner)


_RECURRENT: Final = frozenset({"GRU", "LSTM", "RNN"})
_TRANSFORMS: Final = frozenset({"DFT", "STFT"})
_ELEMENT_FLOPS: Final = 8
"""Operations per element of the results of operators without weights. Such operators are bound by
memory: an element takes as long as several operations of a matrix product."""


def _flops(node: NodeProto, shapes: Mapping[str, Shape], positions: int) -> int:
    """Estimate the operations of a node.

    Args:
        node: The node.
        shapes: The known shapes of weights and results.
        positions: The number of positions at which a weight is used, if shapes are not known.
    """
    given = [shapes.get(name) for name in node.input]
    made = [shapes.get(name) for name in node.output if name]
    kernel = max((math.prod(own) for own in given[1:] if own), default=0)
    result, first = made[0] if made else None, given[0] if given else None
    if "MatMul" in node.op_type or node.op_type == "Gemm":
        if result and first:
            transposed = any(one.name == "transA" and one.i for one in node.attribute)
            return 2 * math.prod(result) * first[0 if transposed else -1]
    elif "Conv" in node.op_type and first is not None and len(first) > 1:
        # Each kernel is used once for each position of the result; if transposed, of the input.
        own = first if "Transpose" in node.op_type else result
        if own and len(own) > 1:
            return 2 * kernel * math.prod(own[2:]) * own[0]
    elif node.op_type in _RECURRENT and first:
        weights = sum(math.prod(own) for own in given[1:3] if own)
        return 2 * weights * math.prod(first[:2])
    elif node.op_type in _TRANSFORMS and result:
        # Computed for each frequency separately; the last dim is the real and imaginary part.
        return 4 * math.prod(result) * result[-2]
    elif all(own is not None for own in made):
        return _ELEMENT_FLOPS * sum(math.prod(own) for own in made if own is not None)
    return 2 * kernel * positions


_MOST_ELEMENTS: Final = 1024
"""Maximum size of a value that may determine a tensor's size: a shape, an index, a list of axes."""

_OF_SHAPES: Final = frozenset({"Shape", "Size"})
"""Operators that use the shape of their input, and not its elements."""


class ShapeValues:
    """The values in a graph that follow from shapes alone, such as the end of a slice.

    Shape inference propagates such values through a few operators only. For other operators, onnx's
    reference evaluator computes them, one small node after another, for any number of shapes.
    """

    def __init__(self, onnx: Onnx, model: ModelProto) -> None:
        """Select the nodes; `onnx` is the package, large tensors of `model` may lack elements."""
        from onnx.reference import ReferenceEvaluator

        self._onnx = onnx
        self._evaluator: Any = ReferenceEvaluator
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._constants: dict[str, Array] = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in model.graph.initializer
            if _has_elements(tensor)
        }
        self._nodes = _nodes_of_shapes(model, self._constants)
        self._evaluators: dict[int, Evaluator] = {}  # index of the node: created at first use

    def compute(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Return the small results that follow from shapes, by name.

        Args:
            shapes: The known shapes of inputs and results.
        """
        known = dict(self._constants)
        for index, node in enumerate(self._nodes):
            inputs = _inputs(node, known, shapes)
            if inputs is not None and all(
                name in shapes and math.prod(shapes[name]) <= _MOST_ELEMENTS for name in node.output
            ):
                known.update(self._run(index, node, inputs))
        return {name: value for name, value in known.items() if name not in self._constants}

    def _run(self, index: int, node: NodeProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the node's results by name; empty if the evaluator cannot compute them."""
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
        except Exception:  # an operator's implementation may raise anything: the value is unknown
            return {}
        return dict(zip(node.output, results, strict=True))


def _nodes_of_shapes(model: ModelProto, constants: Collection[str]) -> tuple[NodeProto, ...]:
    """Return the nodes whose results follow from shapes and constants, in order."""
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
    names = {name for name in node.input if name}
    if node.op_type not in _OF_SHAPES:
        return {name: known[name] for name in names} if names <= known.keys() else None
    if not names <= shapes.keys():
        return None
    # Placeholders of these shapes, whose elements are all the same byte.
    return {name: np.broadcast_to(np.int8(0), shapes[name]) for name in names}


def _has_elements(tensor: TensorProto) -> bool:
    described = {"name", "dims", "data_type", "doc_string"}
    fields = {field.name for field, _ in tensor.ListFields()}
    return math.prod(tensor.dims) == 0 or not fields <= described
