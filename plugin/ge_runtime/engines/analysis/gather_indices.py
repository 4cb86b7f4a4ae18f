"""The inputs of an ONNX graph whose elements are indices, such as the ids of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ge_runtime.engines.analysis.protobuf import fields

_GRAPH: Final = 7
"""The field of ModelProto with the graph; all field numbers are from onnx.proto3."""
_NODE: Final = 1
_GATHER: Final = "Gather"
_MOVING: Final = frozenset(
    ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose",
     "Unsqueeze")
)  # fmt: skip
"""Operators whose result has elements of their first input."""


class _Node(NamedTuple):
    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def index_inputs(model: bytes, node: str) -> set[str]:
    """Return the names of tensors without a producer that a Gather node uses as indices.

    Args:
        model: A serialized ModelProto.
        node: The node's name. If no Gather node has it, as the graph was optimized, all are used.
    """
    nodes = [
        _read_node(content)
        for number, _, graph in fields(memoryview(model))
        if number == _GRAPH
        for field, _, content in fields(graph)
        if field == _NODE
    ]
    gathers = [own for own in nodes if own.operator == _GATHER and len(own.inputs) > 1]
    named = [own for own in gathers if own.name == node]
    producers = {output: own for own in nodes for output in own.outputs}
    return {_source(own.inputs[1], producers) for own in named or gathers} - {""}


def _source(tensor: str, producers: Mapping[str, _Node]) -> str:
    """Return the tensor from which the elements come unchanged; "" if they are computed."""
    while tensor in producers:
        node = producers[tensor]
        if node.operator not in _MOVING or not node.inputs:
            return ""
        tensor = node.inputs[0]
    return tensor


def _read_node(message: memoryview) -> _Node:
    texts: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}
    for number, _, content in fields(message):
        if number in texts:
            texts[number].append(str(content, "utf-8", "replace"))
    inputs, outputs, name, operator = texts.values()
    return _Node("".join(name[-1:]), "".join(operator[-1:]), tuple(inputs), tuple(outputs))
