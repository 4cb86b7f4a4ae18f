"""Opens ONNX Runtime sessions, and shares sessions on the CPU between models.

Models of equal content share a session, and with it the weights that are packed for the CPU's
kernels. Separate sessions would each pack the weights: the container that shares packed weights is
not available in the Python package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from ge_runtime.engines.content import ContentHashes
from ge_runtime.engines.onnx_arena import OnnxArena, process_arena, trim
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array

# onnxruntime and its objects, which have no type stubs.
Onnxruntime: TypeAlias = Any
Session: TypeAlias = Any

Provider: TypeAlias = str | tuple[str, Mapping[str, str]]
"""The name of an execution provider, optionally with its options."""


@dataclass(frozen=True, slots=True)
class GraphExecution:
    """Settings of a session, except the threads within a node."""

    inter_op_threads: int = 1
    """Threads of a parallel execution; 0: one for each core."""
    parallel: bool = False
    """True if branches of the graph are executed at the same time."""
    optimization: str = "ORT_ENABLE_ALL"
    """The name of a GraphOptimizationLevel of ONNX Runtime."""
    operators: tuple[str, ...] = ()
    """Paths of libraries with custom operators."""


_DEFAULT: Final = GraphExecution()
_CPU: Final = "CPUExecutionProvider"
_SLOWER: Final = ("SkipLayerNormFusion",)
"""Optimizations that are not applied on the CPU.

For [224, 384] SkipLayerNormalization takes 429 us; Add and LayerNormalization together take 67 us
(ONNX Runtime 1.32, one thread). The difference is 6 to 7 % of the CPU time of an encoder.
"""
_FATAL: Final = 4
_EXTERNAL_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_NO_ENTRIES: Final[Mapping[str, str]] = MappingProxyType({})


def open_session(
    path: Path,
    threads: int,
    providers: Sequence[Provider],
    entries: Mapping[str, str] = _NO_ENTRIES,
    execution: GraphExecution = _DEFAULT,
    *,
    content: bytes | None = None,
    weights: Mapping[str, Array] = MappingProxyType({}),
) -> Session:
    """Open a session of the graph in `path`, with the first provider that is available.

    Args:
        path: The .onnx file.
        threads: Maximum number of host threads within a node.
        providers: The providers, in order of preference.
        entries: Additional entries of the session's configuration.
        execution: Other settings.
        content: The content to use in place of the file's; external files are beside the file.
        weights: Weights by name, to use in place of weights in external files.

    Raises:
        ArtifactFault: ONNX Runtime cannot open the graph.
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
    # Spinning threads waste cores that the server and other models need.
    # Measured on 2 busy cores, 2 threads, six 384x1536 layers on 128 rows, back to back:
    # 30 ms of CPU time and 35 ms latency per run with spinning, 19 ms and 18 ms without.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if affinities := _affinities(threads):
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    # ONNX Runtime keeps a memory pattern for each combination of input shapes, and ragged batches
    # seldom repeat one. Measured over 2,000 random batches of the same layers: growth of 3.6 MiB
    # and 14.1 ms per run with patterns, 0.0 MiB and 14.0 ms without.
    options.enable_mem_pattern = False
    options.log_severity_level = _FATAL  # errors are raised, and need not be logged
    try:
        for library in execution.operators:
            options.register_custom_ops_library(library)
        if content is not None:
            options.add_session_config_entry(_EXTERNAL_FOLDER, str(path.parent))
        if weights:
            value_of = onnxruntime.OrtValue.ortvalue_from_numpy
            options.add_external_initializers([*weights], [*map(value_of, weights.values())])
        # With fallback, onnxruntime would print an error and continue with another provider.
        return onnxruntime.InferenceSession(
            str(path) if content is None else content,
            options,
            providers=list(providers),
            enable_fallback=0,
            disabled_optimizers=_SLOWER if [*providers] == [_CPU] else None,
        )
    except Exception as error:
        text = advised(str(error))
        raise ArtifactFault(f"{path}: onnxruntime cannot open it: {text}") from error


def _affinities(threads: int) -> str:
    """Return the core of each further thread, if an execution uses all cores of this process.

    Linux often wakes a thread on the core of the thread that wakes it, so that both share a core
    while another is idle. ONNX Runtime pins threads only if it chooses their number itself.
    Measured on 2 cores, unpinned relative to pinned: 1.07 to 1.1 times the CPU time of executions
    of 0.1 GFLOP. With fewer threads than cores, several models would be pinned to the same cores.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    # ONNX Runtime counts cores from 1. The first thread is the caller's, which is not pinned.
    return ";".join(str(core + 1) for core in cores[1:]) if threads == len(cores) else ""


_MEMORY: Final = "it needs more memory than is free: use a larger machine or a smaller graph"
_WEIGHTS: Final = "copy the graph's files of weights to its folder"
_ADVICE: Final[Mapping[str, str]] = {
    "Protobuf parsing failed": "it is no ONNX graph, or incomplete: export or copy it again",
    "External data path does not exist": _WEIGHTS,
    "cannot get file size": _WEIGHTS,  # up to 1.23
    "is not a registered function": "export the graph with standard operators",
    "NOT_IMPLEMENTED": "export the graph with other operators or types, or update onnxruntime",
    "allocate memory": _MEMORY,
    "bad_alloc": _MEMORY,
}
"""The remedy for errors of ONNX Runtime, by a part of the error."""


def advised(error: str) -> str:
    """Return an error of ONNX Runtime with its remedy, if there is one."""
    remedy = next((own for part, own in _ADVICE.items() if part in error), "")
    return f"{error.rstrip('.')}; {remedy}" if remedy else error


def import_onnxruntime() -> Onnxruntime:
    """Import onnxruntime with its telemetry switched off."""
    # ONNX Runtime 1.29 and later sends telemetry unless this variable is set before the import
    # (Privacy.md in its package). A value that is already set is kept.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


@dataclass(frozen=True, slots=True)
class SharedSession:
    """A session that several engines may use at the same time."""

    session: Session
    arena: OnnxArena
    release: Callable[[], None]
    """Releases one use; the last release closes the session."""


@dataclass(slots=True)
class _Entry:
    session: Session
    users: int = 0


class SharedSessions:
    """Sessions on the CPU, one for each content, number of threads and settings.

    The content covers all files that a session reads: the graph, its external weights, and the
    libraries with custom operators.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._contents = ContentHashes()
        self._entries: dict[Hashable, _Entry] = {}
        self._opening: dict[Hashable, Lock] = {}  # kept for ever: a thread may wait for a lock
        self._lock = Lock()

    def acquire(
        self, path: Path, threads: int, execution: GraphExecution = _DEFAULT
    ) -> SharedSession:
        """Return the session of the graph in `path`. Blocks while it is opened.

        Raises ArtifactFault.
        """
        arena = process_arena(import_onnxruntime())
        # A library without a folder is searched for by the loader.
        libraries = [file for own in execution.operators if (file := Path(own)).is_file()]
        content = self._contents.of(path, *libraries)
        key: Hashable = (content, threads, execution)
        with self._lock:
            opening = self._opening.setdefault(key, Lock())
        with opening:  # only threads that need the same session wait
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    entry.users += 1
            if entry is None:
                session = open_session(
                    path, threads, ["CPUExecutionProvider"], arena.entries, execution
                )
                trim()  # memory from reading the file
                entry = _Entry(session, users=1)
                # A file may have been replaced after its hash was computed.
                if self._contents.of(path, *libraries) == content:
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
"""The sessions of this process."""
