"""Sessions of ONNX Runtime: how they are opened, and those on the CPU that several models share.

Models of equal content share a session, and so its weights as they are packed for the CPU's
kernels. The container that would share packed weights between sessions has no name in the Python
package, and each session packs its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from ge_runtime.engines.artifact import ContentHashes
from ge_runtime.engines.onnx_arena import OnnxArena, process_arena, trim
from ge_runtime.errors import ArtifactFault

# onnxruntime and its own objects, which come without types.
Onnxruntime: TypeAlias = Any
Session: TypeAlias = Any

Provider: TypeAlias = str | tuple[str, Mapping[str, str]]
"""What executes, by ONNX Runtime's name for it, perhaps with its options."""


@dataclass(frozen=True, slots=True)
class GraphExecution:
    """How a session executes its graph, besides the threads within a node."""

    inter_op_threads: int = 1
    """Of a parallel execution; 0 for as many as there are cores."""
    parallel: bool = False
    """Whether branches of the graph are executed at the same time."""
    optimization: str = "ORT_ENABLE_ALL"
    """A name of ONNX Runtime's GraphOptimizationLevel."""
    operators: tuple[str, ...] = ()
    """Libraries of custom operators."""


_AS_USUAL: Final = GraphExecution()
_FATAL: Final = 4
_NO_ENTRIES: Final[Mapping[str, str]] = MappingProxyType({})


def open_session(
    path: Path,
    threads: int,
    providers: Sequence[Provider],
    entries: Mapping[str, str] = _NO_ENTRIES,
    execution: GraphExecution = _AS_USUAL,
) -> Session:
    """A session of the graph in `path`, on the first of the providers that it can be made for.

    threads: the most that it uses of the host's. entries: of its configuration, besides those that
    all have. Raises ArtifactFault.
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = execution.inter_op_threads
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, execution.optimization
    )
    if execution.parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    # Waiting threads that spin burn the cores that the server and its other models share.
    # Measured on 2 busy cores, 2 threads, six 384x1536 layers on 128 rows, back to back:
    # 30 ms of CPU time and 35 ms latency per run with spinning, 19 ms and 18 ms without.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    # Memory patterns are kept for each combination of input shapes ever seen, and ragged
    # batches seldom repeat one. Measured over 2,000 random batches of the same layers: 3.6 MiB
    # more and 14.1 ms a run with patterns, 0.0 MiB and 14.0 ms without.
    options.enable_mem_pattern = False
    options.log_severity_level = _FATAL  # what is an error is raised as well
    try:
        for library in execution.operators:
            options.register_custom_ops_library(library)
        # Of its own it would print what is wrong, and go on with another provider.
        return onnxruntime.InferenceSession(
            str(path), options, providers=list(providers), enable_fallback=0
        )
    except Exception as error:
        raise ArtifactFault(f"{path}: onnxruntime cannot open it: {error}") from error


def import_onnxruntime() -> Onnxruntime:
    """onnxruntime, which tells nobody of its use."""
    # From 1.29 on ONNX Runtime reports its use to its makers, unless told not to before its
    # import (Privacy.md in its package). A choice already in the environment stands.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


@dataclass(frozen=True, slots=True)
class SharedSession:
    """A session that others may execute on, too, at the same time."""

    session: Session
    arena: OnnxArena
    release: Callable[[], None]
    """Gives it back; with its last user it is closed."""


@dataclass(slots=True)
class _Entry:
    session: Session
    users: int = 0


class SharedSessions:
    """One session on the CPU for all graphs of equal content that are executed in the same way.

    Safe from any thread.
    """

    def __init__(self) -> None:
        self._contents = ContentHashes()
        self._entries: dict[Hashable, _Entry] = {}
        self._opening: dict[Hashable, Lock] = {}  # never removed: somebody may wait for it
        self._lock = Lock()

    def acquire(
        self, path: Path, threads: int, execution: GraphExecution = _AS_USUAL
    ) -> SharedSession:
        """The session of the graph in `path`. Blocks while it is opened. Raises ArtifactFault."""
        arena = process_arena(import_onnxruntime())
        content = self._contents.of(path)
        key: Hashable = (content, threads, execution)
        with self._lock:
            opening = self._opening.setdefault(key, Lock())
        with opening:  # others who want the same wait; those who want something else do not
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    entry.users += 1
            if entry is None:
                session = open_session(
                    path, threads, ["CPUExecutionProvider"], arena.entries, execution
                )
                trim()  # of what reading the file took
                entry = _Entry(session, users=1)
                # The file may have been replaced between the reading and the opening.
                if self._contents.of(path) == content:
                    with self._lock:
                        self._entries[key] = entry
        return SharedSession(entry.session, arena, lambda: self._release(key, entry))

    def _release(self, key: Hashable, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            if not entry.users and self._entries.get(key) is entry:
                del self._entries[key]
            if entry.users:
                return
        entry.session = None
        trim()


PROCESS_SESSIONS: Final = SharedSessions()
"""Those of this process."""
