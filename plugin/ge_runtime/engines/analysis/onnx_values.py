"""The values in an ONNX graph that follow from shapes alone, such as where a slice ends.

Shape inference follows them through a few operators only. Where that is not enough, onnx's
reference evaluator computes them, one small node after another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.specs import Array

# The package onnx, its messages and its evaluators, which come without types.
Onnx: TypeAlias = Any
ModelProto: TypeAlias = Any
NodeProto: TypeAlias = Any
TensorProto: TypeAlias = Any
Evaluator: TypeAlias = Any

_MOST_ELEMENTS: Final = 1024
"""Of a value that can tell a size: a shape, an index, a list of axes."""

_OF_SHAPES: Final = frozenset({"Shape", "Size"})
"""Operators that look at the shape of their input, and not at its elements."""


class ShapeValues:
    """Computes values of one graph, for any number of shapes."""

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
