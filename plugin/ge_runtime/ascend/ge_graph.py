"""What an AIR graph takes and gives, as GE-PY's nodes tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

# GE-PY's objects, which come without types.
Graph: TypeAlias = Any
TensorDesc: TypeAlias = Any

_INPUT: Final = "Data"
_OUTPUT: Final = "NetOutput"
_ANY_RANK: Final = -2


@dataclass(frozen=True, slots=True)
class GraphValue:
    """An input, by its name, or a result, which has none."""

    name: str
    dtype: int
    """GE's number, the same as aclDataType's for types that Triton has."""
    dims: tuple[int | None, ...] | None
    """None for what varies."""


def inputs_of(graph: Graph) -> list[GraphValue]:
    """In the order in which they are given. Raises RuntimeError as GE-PY does."""
    nodes = [node for node in graph.get_direct_nodes() if node.type == _INPUT]
    nodes.sort(key=lambda node: int(node.get_attr("index")))
    return [_value(str(node.name), node.get_output_desc(0)) for node in nodes]


def outputs_of(graph: Graph) -> list[GraphValue]:
    """In the order in which they are given; none where the graph has no node for them.

    Raises RuntimeError as GE-PY does.
    """
    results: list[GraphValue] = []
    for last in (node for node in graph.get_direct_nodes() if node.type == _OUTPUT):
        for index in range(last.get_inputs_size()):
            node, port = last.get_in_data_nodes_and_port_indexes(index)
            results.append(_value("", node.get_output_desc(port)))
    return results


def _value(name: str, desc: TensorDesc) -> GraphValue:
    dims: Sequence[int] = desc.shape
    if _ANY_RANK in dims:
        return GraphValue(name, int(desc.data_type), None)
    return GraphValue(name, int(desc.data_type), tuple(d if d >= 0 else None for d in dims))
