"""GE-PY, GE's own Python interface, as this process uses it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from ge_runtime.ascend.search_path import import_broken_or_not
from ge_runtime.errors import NoDevice

# GE-PY's modules and objects, which come without types.
GePy: TypeAlias = Any
Session: TypeAlias = Any

MODULES: Final = {
    "global_": "ge.ge_global",
    "session": "ge.session",
    "graph": "ge.graph",
    "types": "ge.graph.types",
    "allocator": "ge.allocator",
}
NAMES: Final = {
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


class GeProcess:
    """GE is begun by the first who uses it and ended by the last. Safe from any thread."""

    def __init__(self, py: GePy) -> None:
        """py: GE-PY's modules by our names for them."""
        self.py = py
        self._lock = Lock()
        self._users = 0

    def enter(self, device: int) -> None:
        """Use GE, until `leave`. device: of sessions that name none. Raises RuntimeError as GE."""
        with self._lock:
            if self._users == 0:
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
            if self._users == 0:
                self.py.global_.GeApi().ge_finalize()


@cache
def open_ge() -> GeProcess:
    """GE of this process. Raises NoDevice, with the cure, where there is no GE-PY."""
    modules = {}
    for name, module in MODULES.items():
        try:
            modules[name] = import_broken_or_not(module)
        except ImportError as error:
            raise NoDevice(
                f"found no module `{module}` ({error}), expected GE-PY, which new releases of "
                "CANN's toolkit have: run `source /usr/local/Ascend/cann/set_env.sh` before the "
                "server starts, or build a model.om, which needs no GE-PY: `ge-runtime build`"
            ) from error
    if names := lacking(modules):
        raise NoDevice(
            f"found a GE-PY without {', '.join(names)}, expected one with all that is used of "
            "it: another release of CANN's toolkit, or a model.om, which needs no GE-PY: "
            "`ge-runtime build`"
        )
    return GeProcess(SimpleNamespace(**modules))


def lacking(modules: Mapping[str, object]) -> list[str]:
    """What is used of GE-PY and is not there. modules: by our names for them."""
    return [
        f"{MODULES[name]}.{path}"
        for name, paths in NAMES.items()
        for path in paths
        if not _has(modules[name], path)
    ]


def _has(module: object, path: str) -> bool:
    try:
        operator.attrgetter(path)(module)
    except AttributeError:
        return False
    return True
