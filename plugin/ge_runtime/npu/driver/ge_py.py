"""GE-PY, GE's own Python interface, as this process uses it, and what it tells of AIR graphs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from ge_runtime.errors import NoDevice
from ge_runtime.npu.driver.installation import import_cann_module

# GE-PY's modules and objects, which come without types.
GePy: TypeAlias = Any
Session: TypeAlias = Any
Graph: TypeAlias = Any
TensorDesc: TypeAlias = Any

GE_PY_MODULES: Final = {
    "global_": "ge.ge_global",
    "session": "ge.session",
    "graph": "ge.graph",
    "types": "ge.graph.types",
    "allocator": "ge.allocator",
}
GE_PY_NAMES: Final = {
    "global_": ("GeApi.ge_initialize", "GeApi.ge_finalize"),
    "session": (
        *("Session.add_graph", "Session.remove_graph", "Session.run_graph_with_stream_async"),
        *("Session.register_external_allocator", "Session.unregister_external_allocator"),
    ),
    "graph": (
        *("Graph.load_from_air", "Graph.get_direct_nodes"),
        *("Node.name", "Node.type", "Node.get_attr", "Node.get_output_desc"),
        *("Node.get_inputs_size", "Node.get_in_data_nodes_and_port_indexes"),
        *("Tensor.to_device", "Tensor.to_host", "Tensor.shape"),
        *("Tensor.set_data_type", "Tensor.get_data"),
    ),
    "types": ("DataType", "Format.FORMAT_ND"),
    "allocator": ("Allocator", "MemBlock.addr"),
}
"""What is used of them, as GE-PY 0.0.1 has it. It is young, and may change."""

_INPUT_NODE: Final = "Data"
_OUTPUT_NODE: Final = "NetOutput"
_ANY_RANK: Final = -2
"""In the place of a dimension: not even their number is known."""


class GeProcess:
    """GE in this process, begun by its first user and ended by the last. Safe from any thread."""

    def __init__(self, py: GePy) -> None:
        """py: GE-PY's modules by our names for them."""
        self.py = py
        self._lock = Lock()
        self._users = 0

    def enter(self, device: int) -> None:
        """Use GE, until `leave`. device: of sessions that name none. Raises RuntimeError as GE."""
        with self._lock:
            if self._users == 0:
                # Once for the process, before any session; without options ge_initialize refuses.
                begun = {"ge.graphRunMode": "0", "ge.exec.deviceId": str(device)}
                self.py.global_.GeApi().ge_initialize(begun)
            self._users += 1

    def open_session(self, device: int, options: Mapping[str, str]) -> Session:
        """A session on a card, which is gone once nothing refers to it any more.

        Between `enter` and `leave`. Raises RuntimeError as GE does.
        """
        return self.py.session.Session({**options, "ge.session_device_id": str(device)})

    def leave(self) -> None:
        """One user less; his sessions are gone."""
        with self._lock:
            self._users -= 1
            if self._users == 0:  # GE may end only after its last session is gone
                self.py.global_.GeApi().ge_finalize()


@cache
def open_ge() -> GeProcess:
    """GE of this process. Raises NoDevice, with the cure, where there is no GE-PY."""
    modules = {}
    for name, module in GE_PY_MODULES.items():
        try:
            modules[name] = import_cann_module(module)
        except ImportError as error:
            raise NoDevice(
                f"found no module `{module}` ({error}), expected GE-PY, which new releases of "
                "CANN's toolkit have: run `source /usr/local/Ascend/cann/set_env.sh` before the "
                "server starts, or build a model.om, which needs no GE-PY: `ge-runtime build`"
            ) from error
    if names := missing_names(modules):
        raise NoDevice(
            f"found a GE-PY without {', '.join(names)}, expected one with all that is used of "
            "it: another release of CANN's toolkit, or a model.om, which needs no GE-PY: "
            "`ge-runtime build`"
        )
    return GeProcess(SimpleNamespace(**modules))


def missing_names(modules: Mapping[str, object]) -> list[str]:
    """What is used of GE-PY and is not there. modules: by our names for them."""
    return [
        f"{GE_PY_MODULES[name]}.{path}"
        for name, paths in GE_PY_NAMES.items()
        for path in paths
        if not _has(modules[name], path)
    ]


def _has(module: object, path: str) -> bool:
    try:
        operator.attrgetter(path)(module)
    except AttributeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class GraphValue:
    """An input, by its name, or a result, which has none."""

    name: str
    dtype: int
    """GE's number, the same as aclDataType's for types that Triton has."""
    dims: tuple[int | None, ...] | None
    """None for what varies."""


def graph_inputs(graph: Graph) -> list[GraphValue]:
    """In the order in which they are given. Raises RuntimeError as GE-PY does."""
    nodes = [node for node in graph.get_direct_nodes() if node.type == _INPUT_NODE]
    nodes.sort(key=lambda node: int(node.get_attr("index")))  # not the order of nodes
    return [_value(str(node.name), node.get_output_desc(0)) for node in nodes]


def graph_outputs(graph: Graph) -> list[GraphValue]:
    """In the order in which they are given; none where the graph has no node for them.

    Raises RuntimeError as GE-PY does.
    """
    results: list[GraphValue] = []
    for last in (node for node in graph.get_direct_nodes() if node.type == _OUTPUT_NODE):
        for index in range(last.get_inputs_size()):
            node, port = last.get_in_data_nodes_and_port_indexes(index)
            results.append(_value("", node.get_output_desc(port)))
    return results


def _value(name: str, desc: TensorDesc) -> GraphValue:
    dims: Sequence[int] = desc.shape
    if _ANY_RANK in dims:
        return GraphValue(name, int(desc.data_type), None)
    return GraphValue(name, int(desc.data_type), tuple(d if d >= 0 else None for d in dims))
