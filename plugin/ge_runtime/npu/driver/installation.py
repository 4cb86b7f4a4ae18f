"""An installation of CANN: its version, its Python packages, GE-PY, and the values of AIR graphs.

GE-PY is the Python interface of GE (Graph Engine).
"""

from __future__ import annotations

import importlib
import operator
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from ge_runtime.errors import NoDevice

# A module without type stubs.
Module: TypeAlias = Any


def apply_pythonpath() -> None:
    """Add the folders of PYTHONPATH to sys.path if the interpreter ignores the variable.

    CANN's set_env.sh adds the folders of CANN's packages to PYTHONPATH. Safe to call again.
    """
    # The model processes of Triton 2.51 with Python 3.11 have sys.flags.isolated = 1. The folders
    # are appended, so that they hide no other modules.
    if sys.flags.ignore_environment:
        for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if folder not in sys.path:
                sys.path.append(folder)


def import_cann_module(name: str) -> Module:
    """Import a module of CANN, or one that loads CANN's libraries. Raises only ImportError.

    An incomplete installation may raise any exception: AttributeError if Python files and libraries
    are of different releases, OSError if a library cannot be loaded. Old releases of torch_npu call
    `sys.exit`.
    """
    try:
        module = importlib.import_module(name)
        # torch_npu puts a lazy module for torchair into sys.modules; this access loads it.
        _ = module.__spec__
    except ImportError:
        raise
    except (Exception, SystemExit) as error:
        raise ImportError(f"{type(error).__name__}: {error}", name=name) from error
    return module


_LOG_TAIL_BYTES: Final = 65_536
_LOG_LINES: Final = 3


def log_folder() -> Path:
    """Return the folder of CANN's log of processes ("plog")."""
    own = os.environ.get("ASCEND_PROCESS_LOG_PATH")
    return Path(own) if own else Path.home() / "ascend" / "log"


def last_log_errors() -> str:
    """Return the last errors in CANN's log of this process, with the file's path; or "".

    CANN buffers the log; with ASCEND_LOG_SYNC_SAVE=1 no line is missing after a crash.
    """
    try:
        files = log_folder().glob(f"*/plog/plog-{os.getpid()}_*.log")
        newest = max(files, key=lambda file: file.stat().st_mtime_ns)
        with newest.open("rb") as log:
            log.seek(max(newest.stat().st_size - _LOG_TAIL_BYTES, 0))
            lines = log.read(_LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    except (OSError, ValueError):  # ValueError: there is no such file
        return ""
    errors = [line for line in lines if line.startswith("[ERROR]")][-_LOG_LINES:]
    return "\n".join([f"last errors in {newest}:", *errors]) if errors else ""


_RUNNING: Final = re.compile(r"^\w+_running_version=\[(?:[^\]:]*:)?([^\]]+)\]", re.MULTILINE)
_INSTALLED: Final = re.compile(r"^version=(\S+)", re.MULTILINE)


def cann_version(home: Path) -> str | None:
    """Return the version of the toolkit in `home`, e.g. 8.3.RC1; None if it is not known.

    Releases have version.cfg, or ascend_toolkit_install.info for each processor, or both.
    """
    files = [
        (_RUNNING, home / "version.cfg"),
        *((_INSTALLED, file) for file in sorted(home.glob("*-linux/ascend_toolkit_install.info"))),
    ]
    matches = (pattern.search(read_text_or_none(file) or "") for pattern, file in files)
    return next((match[1] for match in matches if match), None)


def read_text_or_none(file: Path) -> str | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


# GE-PY's modules and objects, which have no type stubs.
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
"""The functions and classes of GE-PY 0.0.1 that are used. Other versions may differ."""

_INPUT_NODE: Final = "Data"
_OUTPUT_NODE: Final = "NetOutput"
_ANY_RANK: Final = -2
"""An element of the dims of a tensor of unknown rank."""


class GeProcess:
    """GE in this process. The first user initializes it, the last one finalizes it. Thread-safe."""

    def __init__(self, py: GePy) -> None:
        """Initialize with an object that has the modules of GE_PY_MODULES as attributes."""
        self.py = py
        self._lock = Lock()
        self._users = 0

    def enter(self, device: int) -> None:
        """Add a user, which must call `leave`.

        Args:
            device: The default device of sessions.

        Raises:
            RuntimeError: GE cannot be initialized.
        """
        with self._lock:
            if self._users == 0:
                # Once for the process, before any session; ge_initialize requires options.
                options = {"ge.graphRunMode": "0", "ge.exec.deviceId": str(device)}
                self.py.global_.GeApi().ge_initialize(options)
            self._users += 1

    def open_session(self, device: int, options: Mapping[str, str]) -> Session:
        """Open a session on a card, between `enter` and `leave`.

        The session is closed when its last reference is deleted. Raises GE's RuntimeError.
        """
        return self.py.session.Session({**options, "ge.session_device_id": str(device)})

    def leave(self) -> None:
        """Remove a user. The user's sessions must have been closed."""
        with self._lock:
            self._users -= 1
            if self._users == 0:  # GE must be finalized after its last session is closed
                self.py.global_.GeApi().ge_finalize()


@cache
def open_ge() -> GeProcess:
    """Return GE of this process. Raises NoDevice, with the fix, if GE-PY is missing."""
    modules = {}
    for name, module in GE_PY_MODULES.items():
        try:
            modules[name] = import_cann_module(module)
        except ImportError as error:
            raise NoDevice(
                f"found no module `{module}` ({error}), expected GE-PY, which new releases of "
                "CANN's toolkit contain: run `source /usr/local/Ascend/cann/set_env.sh` before the "
                "server starts, or build a model.om, which needs no GE-PY: `ge-runtime build`"
            ) from error
    if names := missing_names(modules):
        raise NoDevice(
            f"found a GE-PY without {', '.join(names)}, expected a GE-PY with these names: use "
            "another release of CANN's toolkit, or build a model.om, which needs no GE-PY: "
            "`ge-runtime build`"
        )
    return GeProcess(SimpleNamespace(**modules))


def missing_names(modules: Mapping[str, object]) -> list[str]:
    """Return the names in GE_PY_NAMES that GE-PY lacks; `modules` has the keys of GE_PY_MODULES."""
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
    """An input or a result of an AIR graph."""

    name: str
    """Empty for results, which have no names."""
    dtype: int
    """GE's type number, equal to aclDataType for the types that Triton has."""
    dims: tuple[int | None, ...] | None
    """The element of a size that varies is None. None if the rank is unknown."""


def graph_inputs(graph: Graph) -> list[GraphValue]:
    """Return the inputs in the order of the graph's arguments. Raises GE-PY's RuntimeError."""
    nodes = [node for node in graph.get_direct_nodes() if node.type == _INPUT_NODE]
    nodes.sort(key=lambda node: int(node.get_attr("index")))  # nodes may have another order
    return [_value(str(node.name), node.get_output_desc(0)) for node in nodes]


def graph_outputs(graph: Graph) -> list[GraphValue]:
    """Return the results in order; empty if the graph has no node NetOutput.

    Raises GE-PY's RuntimeError.
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
