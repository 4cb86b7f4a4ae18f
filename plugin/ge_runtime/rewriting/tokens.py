"""Finds the values of a graph that have a dimension of tokens, and the mask of the tokens."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeAlias

from ge_runtime.engines.analysis.onnx_graph import OnnxGraph
from ge_runtime.rewriting.graph import (
    ModelProto,
    NodeProto,
    attribute,
    constant_tensors,
    import_onnx,
    inner_inputs,
    operator,
)
from ge_runtime.specs import Array

Shape: TypeAlias = tuple[int, ...]

LINEAR: Final = frozenset({"Gemm", "MatMul", "MatMulInteger"})
SIZES: Final = frozenset({"Shape", "Size"})
_ATTENTION: Final = frozenset({"Attention", "com.microsoft.MultiHeadAttention", "Softmax"})
"""Operators that compute attention, or the last step before its product with the values."""
_CONDITIONS: Final = frozenset({"Cast", "Equal", "Greater", "Less", "Not"})
_PASSES_INDICES: Final = frozenset({"Add", "Cast", "Identity", "Mul"})

_ROWS: Final = (3, 5)
_TOKENS: Final = (13, 11)
"""Rows and tokens at which shapes are inferred. A value has tokens if both shapes contain them."""
_SAMPLES: Final = 1600
"""The factor for _TOKENS if the inputs are audio samples: many samples make one token."""


class Layout(NamedTuple):
    """The layout of a value with tokens: [rows, tokens, *rest], or [rows * tokens, *rest]."""

    flat: bool
    rest: Shape

    @property
    def rank(self) -> int:
        """The dimensions of the padded value."""
        return len(self.rest) + (1 if self.flat else 2)


class Refused(Exception):
    """The graph cannot be rewritten; the text is "found ..., expected ..."."""


class TokenAnalysis:
    """Analyses a graph by the shapes of its values at two sets of sizes."""

    def __init__(self, model: ModelProto, graph: OnnxGraph) -> None:
        """Infer the shapes; `graph` is the analysis of `model`."""
        self._model = model
        weights = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [value for value in model.graph.input if value.name not in weights]
        self._producer = {name: node for node in model.graph.node for name in node.output if name}
        self._constants = _constants(model, weights)
        self._values = _small_values(model)
        self._given_tokens: list[int] = []
        self._shapes = [self._shapes_at(graph, place) for place in range(len(_ROWS))]
        self._sizes: list[Shape] = []  # rows and tokens of the mask, once it is found

    def _shapes_at(self, graph: OnnxGraph, place: int) -> dict[str, Shape]:
        """Return the shapes of all values at the sizes `_ROWS[place]` and `_TOKENS[place]`."""
        floating = import_onnx().TensorProto.FLOAT
        # Audio: one token is made of hundreds of samples.
        samples = all(
            one.type.tensor_type.elem_type == floating and len(one.type.tensor_type.shape.dim) == 2
            for one in self._inputs[:1]
        )
        tokens = _TOKENS[place] * (_SAMPLES if samples else 1)
        self._given_tokens.append(tokens)
        given: dict[str, Shape] = {}
        for value in self._inputs:
            dims = value.type.tensor_type.shape.dim
            free = (_ROWS[place], *[tokens] * (len(dims) - 1))
            given[value.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else size
                for dim, size in zip(dims, free, strict=True)
            )
        weights = {tensor.name: tuple(tensor.dims) for tensor in self._model.graph.initializer}
        return {**weights, **given, **graph.shapes(given)}

    def _layout(self, name: str) -> Layout | None:
        """Return the layout of a value with tokens; None for other values."""
        first, second = (shapes.get(name) for shapes in self._shapes)
        if first is None or second is None or len(first) != len(second):
            return None
        sizes = self._sizes
        if (first[:2], second[:2]) == (sizes[0], sizes[1]) and first[2:] == second[2:]:
            return Layout(False, first[2:])
        flat = first[:1], second[:1]
        if flat == ((math.prod(sizes[0]),), (math.prod(sizes[1]),)) and first[1:] == second[1:]:
            return Layout(True, first[1:])
        return None

    def _find_mask(self) -> str:
        """Return the mask: the two-dimensional value that attention's softmax depends on.

        The mask is an input of the graph, or computed from lengths or token ids. Raises Refused.
        """
        cores = [node for node in self._model.graph.node if operator(node) in _ATTENTION]
        if not cores:
            raise Refused("found no Softmax, expected the attention of an encoder")
        reached: set[str] = set()
        pending = [name for node in cores for name in node.input]
        while pending:
            name = pending.pop()
            if not name or name in reached or name in self._constants:
                continue
            reached.add(name)
            node = self._producer.get(name)
            if node is not None and not self._ends_search(node):
                pending += [*node.input, *inner_inputs(node)]
        inputs = [value.name for value in self._inputs if value.name in reached]
        ids = self._embedded()
        masks: list[str] = [name for name in inputs if self._is_mask(name) and name not in ids]
        if len(masks) > 1:
            found = " and ".join(f"'{name}'" for name in masks)
            raise Refused(f"found that attention depends on {found}, expected one mask")
        if masks:
            return masks[0]
        conditions: list[str] = [
            name
            for node in self._model.graph.node
            for name in node.output
            if name in reached and operator(node) in _CONDITIONS
            if self._is_mask(name) and not self._ancestors(name).isdisjoint(inputs)
        ]
        if not conditions:
            raise Refused(
                "found no input or condition of [rows, tokens] that attention's softmax depends "
                "on, expected a mask. Export the graph with its attention mask"
            )
        return conditions[-1]  # e.g. `Not` of `Equal`, which is true for valid tokens

    def _ends_search(self, node: NodeProto) -> bool:
        """Return whether a node does not pass on the mask: a layer, an embedding or a size."""
        kind = operator(node)
        if kind in LINEAR or kind == "Conv":
            return any(name in self._constants for name in node.input[1:2])
        return kind in SIZES or (kind == "Gather" and node.input[0] in self._constants)

    def _is_mask(self, name: str) -> bool:
        shapes = [shapes.get(name) for shapes in self._shapes]
        return (
            all(
                shape is not None and len(shape) == 2 and shape[0] == rows
                for shape, rows in zip(shapes, _ROWS, strict=True)
            )
            and (shapes[0] or ())[1] != (shapes[1] or ())[1]
        )

    def _embedded(self) -> set[str]:
        """Return the values that index a constant table, directly or through a Cast or Identity."""
        found = set()
        for node in self._model.graph.node:
            if operator(node) == "Gather" and node.input[0] in self._constants:
                name = node.input[1]
                while (own := self._producer.get(name)) and operator(own) in ("Cast", "Identity"):
                    name = own.input[0]
                found.add(name)
        return found

    def _limits(self) -> dict[str, int]:
        """Return for each input of token ids the rows of the smallest table that it indexes."""
        limits: dict[str, int] = {}
        for node in self._model.graph.node:
            table = self._shapes[0].get(node.input[0]) if operator(node) == "Gather" else None
            if not table or attribute(node, "axis", 0) or node.input[0] not in self._constants:
                continue
            pending = [node.input[1]]
            while pending:
                name = pending.pop()
                own = self._producer.get(name)
                if own is None:
                    limits[name] = min(limits.get(name, table[0]), table[0])
                elif operator(own) in _PASSES_INDICES:
                    pending += own.input
        return {value.name: limits[value.name] for value in self._inputs if value.name in limits}

    def _ancestors(self, name: str) -> set[str]:
        """Return a value and all values that it is computed from."""
        found: set[str] = set()
        pending = [name]
        while pending:
            own = pending.pop()
            if not own or own in found or own in self._constants:
                continue
            found.add(own)
            node = self._producer.get(own)
            if node is not None:
                pending += [*node.input, *inner_inputs(node)]
        return found


def _constants(model: ModelProto, weights: set[str]) -> set[str]:
    """Return the names of values that do not depend on the graph's inputs."""
    known = set(weights)
    for node in model.graph.node:
        inputs = [name for name in node.input if name]
        if operator(node) == "Constant" or (inputs and known.issuperset(inputs)):
            known.update(node.output)
    return known


def _small_values(model: ModelProto) -> dict[str, Array]:
    """Return small integer constants by name; nodes use them as axes."""
    onnx = import_onnx()
    integers = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return {
        name: onnx.numpy_helper.to_array(tensor)
        for name, tensor in constant_tensors(model).items()
        if tensor.data_type in integers and math.prod(tensor.dims) <= 8
    }
