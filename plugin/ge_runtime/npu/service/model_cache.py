"""The cache of open models: one engine for all clients with equal files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Buffer, Device
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.backend import DeviceBackend
from ge_runtime.engines.base import Engine, InArena, Shapes, WorkspaceArena
from ge_runtime.engines.content import ContentHashes
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ArtifactFault, RuntimeFault
from ge_runtime.memory.lifetimes import Intermediates, pack
from ge_runtime.memory.plan import ALIGNMENT
from ge_runtime.npu.service.messages import FileIdentity, file_identity
from ge_runtime.specs import Tensors

_REENTRANT: Final = (OnnxEngine,)
"""Engines whose `run` is thread-safe: ONNX Runtime documents that its sessions are, and OnnxEngine
keeps no other state between calls."""

_MARGIN: Final = 2.0
"""Factor on the size of the graph's own results. Executions of measured graphs used up to 1.8 times
this size, and reserved memory in the arena costs nothing until it is touched."""

_MOST_ANALYSED: Final = 1024
"""Maximum number of an engine's shapes whose analysis is cached; most models have fewer gears."""


class EngineMemory(Device[NDArray[np.uint8]]):
    """The part of a backend's memory that one engine uses; it is freed with the engine."""

    kind: ClassVar[str] = "share"

    def __init__(self, memory: Device[NDArray[np.uint8]]) -> None:
        super().__init__(memory.name, None)
        self._memory = memory
        self._buffers: list[Buffer[NDArray[np.uint8]]] = []

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        buffer = self._memory.allocate("engines", nbytes)
        self._buffers.append(buffer)
        return buffer.memory

    def _release(self, memory: NDArray[np.uint8]) -> None:
        (buffer,) = (one for one in self._buffers if one.memory is memory)
        self._buffers.remove(buffer)
        buffer.free()


@dataclass(slots=True, eq=False)
class CachedModel:
    """An open engine with counters, which are approximate: threads update them without a lock."""

    key: Hashable
    artifacts: tuple[Artifact, ...]
    threads: int
    content: str
    engine: Engine
    memory: EngineMemory
    """The memory passed to `Engine.bind`."""
    users: int = 1
    executions: int = 0
    faults: int = 0
    busy_s: float = 0.0
    largest: list[Shapes] = field(default_factory=list)
    """The shapes passed to `Engine.bind`."""
    preparing: Lock = field(default_factory=Lock)
    analysed: dict[str, Intermediates | None] = field(default_factory=dict)
    """Cached intermediate results, by shapes."""
    bytes_per_element: float = 0.0
    """Maximum workspace for each element of the inputs."""
    workspace_bytes: int = 0
    """Maximum workspace of an execution; 0 if unknown."""

    @property
    def exclusive(self) -> Hashable | None:
        """The `QueueEntry.exclusive` of executions; None if they may run concurrently."""
        return None if isinstance(self.engine, _REENTRANT) else id(self)

    @property
    def expected_s(self) -> float:
        """The average duration of an execution."""
        return self.busy_s / self.executions if self.executions else 0.0

    def close(self) -> None:
        """Free the graph and its memory."""
        self.engine.close()
        self.memory.free_all()

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        """See `Engine.intermediates`; the result is cached for all clients of the model."""
        key = repr(sorted(shapes.items()))
        with self.preparing:
            if key not in self.analysed:
                if len(self.analysed) >= _MOST_ANALYSED:
                    self.analysed.clear()
                self.analysed[key] = self.engine.intermediates(shapes)
            return self.analysed[key]

    @property
    def arena(self) -> WorkspaceArena | None:
        """The arena of the engine's workspace, which other models share; None without an arena."""
        return self.engine.arena if isinstance(self.engine, InArena) else None

    def expect(self, largest: Sequence[Shapes]) -> None:
        """Raise the workspace limits to those of executions with these shapes."""
        if self.arena is None:
            return
        for shapes in largest:
            found = self.intermediates(shapes)
            if found is not None and not found.unsized:
                nbytes = int(pack(found.lifetimes, ALIGNMENT).peak * _MARGIN)
                share = nbytes / max(1, sum(map(math.prod, shapes.values())))
                self.bytes_per_element = max(self.bytes_per_element, share)
                self.workspace_bytes = max(self.workspace_bytes, nbytes)
        self.arena.join(self.engine, self.workspace_bytes)

    def in_arena(self, inputs: Tensors) -> AbstractContextManager[None]:
        """Return the context for an execution on these inputs."""
        if self.arena is None:
            return nullcontext()
        about = self.bytes_per_element * sum(array.size for array in inputs.values())
        return self.arena.execution(min(int(about), self.workspace_bytes))

    def note(self, took_s: float, *, failed: bool) -> None:
        """Count an execution."""
        self.executions += 1
        self.faults += failed
        self.busy_s += took_s


class ModelCache:
    """Opens each content once, and closes it with its last user. Thread-safe.

    On the CPU and on a GPU the clients share the engine. On an Ascend card each client has its own
    engine with a slot, and the card shares the weights.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend
        self._shares_engines = backend.kind != "npu"
        self._contents = ContentHashes()
        self._lock = Lock()
        self._opening: dict[Hashable, Lock] = {}  # kept for ever: a thread may wait for a lock
        self._models: dict[Hashable, CachedModel] = {}
        self._numbers = itertools.count()

    def acquire(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> CachedModel:
        """Return the engine for these artifacts, until `release`. Blocks while it is opened.

        Raises the errors of `DeviceBackend.open`.
        """
        contents = [self._contents.of(artifact.path) for artifact in artifacts]
        stems = [artifact.path.stem for artifact in artifacts]
        engines = [artifact.engine for artifact in artifacts]
        # The key has the stems, because they are the names of stages.
        key: Hashable = (*zip(contents, stems, engines, strict=True), threads, *outputs)
        if not self._shares_engines:
            return self._open((next(self._numbers), key), artifacts, threads, outputs, contents)
        with self._lock:
            opening = self._opening.setdefault(key, Lock())
        with opening:  # only threads that need the same model wait
            with self._lock:
                model = self._models.get(key)
                if model is not None:
                    model.users += 1
                    return model
            return self._open(key, artifacts, threads, outputs, contents)

    def _open(
        self,
        key: Hashable,
        artifacts: Sequence[Artifact],
        threads: int,
        outputs: Sequence[str],
        contents: Sequence[str],
    ) -> CachedModel:
        engine = self._backend.open(artifacts, threads=threads, outputs=outputs)
        # Checked again, because a file may have been replaced after its hash was computed.
        try:
            self._check(artifacts, contents)
        except BaseException:
            engine.close()
            raise
        memory = EngineMemory(self._backend.memory)
        model = CachedModel(key, tuple(artifacts), threads, "-".join(contents), engine, memory)
        with self._lock:
            self._models[key] = model
        return model

    def _check(self, artifacts: Sequence[Artifact], contents: Sequence[str]) -> None:
        """Raise ArtifactFault if a file has changed while it was opened."""
        for artifact, content in zip(artifacts, contents, strict=True):
            if self._contents.of(artifact.path) != content:
                raise ArtifactFault(
                    f"{artifact.path}: found content that changed while the file was opened, "
                    "expected the same; load the model again"
                )

    def identities(self, artifacts: Sequence[Artifact]) -> list[list[FileIdentity]]:
        """Return the identities of the files of each artifact. Raises ArtifactFault."""
        return [
            [file_identity(path) for path in self._contents.files(artifact.path)]
            for artifact in artifacts
        ]

    def release(self, model: CachedModel) -> None:
        """Release one use; the last release closes the engine."""
        with self._lock:
            model.users -= 1
            if model.users:
                return
            del self._models[model.key]
        model.close()  # after releasing the lock, because it may take long

    def prepare(self, model: CachedModel, largest: Sequence[Shapes]) -> None:
        """Bind the engine for executions up to these shapes. The engine must be idle.

        Raises OutOfMemory.
        """
        with model.preparing:
            # The earlier shapes stay, because other clients may use them.
            new = [shapes for shapes in largest if shapes not in model.largest]
            if not new:
                return
            memory = EngineMemory(self._backend.memory)
            try:
                model.engine.bind([*model.largest, *new], memory)
            except BaseException:
                memory.free_all()
                if model.largest:  # restore the binding for other users
                    with suppress(RuntimeFault):
                        model.engine.bind(model.largest, model.memory)
                raise
            # The old memory is freed last, so that a failure above changes nothing.
            before, model.memory = model.memory, memory
            model.largest += new
            before.free_all()
        model.expect(new)

    def models(self) -> list[CachedModel]:
        """Return all open models."""
        with self._lock:
            return list(self._models.values())

    def close(self) -> None:
        """Close all engines, including engines in use."""
        with self._lock:
            models, self._models = list(self._models.values()), {}
        for model in models:
            model.close()
