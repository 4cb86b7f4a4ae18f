"""The constants of a graph, wherever they are in it."""

from __future__ import annotations

from typing import Any, TypeAlias

from onnx import numpy_helper

from ascend_simulator.compiler import sizes
from ascend_simulator.compiler.inference import subgraphs

ModelProto: TypeAlias = Any
GraphProto: TypeAlias = Any
TensorProto: TypeAlias = Any


def weight_bytes(model: ModelProto) -> int:
    """What all constants occupy, those in nodes and subgraphs too: see `sizes`."""
    return sum(
        sizes.occupied(int(numpy_helper.to_array(tensor).nbytes))
        for tensor in _constants(model.graph)
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
