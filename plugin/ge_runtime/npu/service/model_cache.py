"""The models that are open in the service: one engine for all clients of equal content."""

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
from ge_runtime.engines.artifact import Artifact, ContentHashes
from ge_runtime.engines.backend import DeviceBackend
from ge_runtime.engines.base import Engine, InArena, Shapes, WorkspaceArena
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ArtifactFault, RuntimeFault
from ge_runtime.memory.lifetimes import Intermediates, pack
from ge_runtime.memory.plan import ALIGNMENT
from ge_runtime.specs import Tensors

_REENTRANT: Final = (OnnxEngine,)
"""Engines whose `run` may be called by several threads at once: ONNX Runtime says so of its
sessions, and nothing else is kept between two calls."""

_MARGIN: Final = 2.0
"""Over the graph's own results: what is reserved in the arena and not touched costs nothing, and
executions of the graphs that were measured took up to 1.8 times as much."""

_MOST_ANALYSED: Final = 1024
"""Shapes of one engine whose analysis is kept: as many as most models have gears."""


class EngineMemory(Device[NDArray[np.uint8]]):
    """What one engine has of a backend's memory: given back with the engine, not the backend."""

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
    """One open engine, and what it has done. Counts are those of many threads: approximate."""

    key: Hashable
    artifacts: tuple[Artifact, ...]
    threads: int
    content: str
    engine: Engine
    memory: EngineMemory
    """The memory that the engine was prepared with."""
    users: int = 1
    executions: int = 0
    faults: int = 0
    busy_s: float = 0.0
    largest: list[Shapes] = field(default_factory=list)
    """The shapes that it was prepared for."""
    preparing: Lock = field(default_factory=Lock)
    analysed: dict[str, Intermediates | None] = field(default_factory=dict)
    """Its intermediate results at the shapes that clients have asked for."""
    bytes_per_element: float = 0.0
    """The most workspace that it was prepared for, for each element of its inputs."""
    workspace_bytes: int = 0
    """The most that any execution takes; 0 if nobody can tell."""

    @property
    def exclusive(self) -> Hashable | None:
        """The key under which its executions take turns; None if they need not."""
        return None if isinstance(self.engine, _REENTRANT) else id(self)

    @property
    def expected_s(self) -> float:
        """What an execution has taken on average."""
        return self.busy_s / self.executions if self.executions else 0.0

    def close(self) -> None:
        """Free the graph and its memory."""
        self.engine.close()
        self.memory.free_all()

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        """As `Engine.intermediates`; analysed once for all clients of the model."""
        key = repr(sorted(shapes.items()))
        with self.preparing:
            if key not in self.analysed:
                if len(self.analysed) >= _MOST_ANALYSED:
                    self.analysed.clear()
                self.analysed[key] = self.engine.intermediates(shapes)
            return self.analysed[key]

    @property
    def arena(self) -> WorkspaceArena | None:
        """In which its workspace lies, among that of other models."""
        return self.engine.arena if isinstance(self.engine, InArena) else None

    def expect(self, largest: Sequence[Shapes]) -> None:
        """Executions may be as large as these."""
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
        """Around an execution on these inputs."""
        if self.arena is None:
            return nullcontext()
        about = self.bytes_per_element * sum(array.size for array in inputs.values())
        return self.arena.execution(min(int(about), self.workspace_bytes))

    def note(self, took_s: float, *, failed: bool) -> None:
        """Count an execution that has ended."""
        self.executions += 1
        self.faults += failed
        self.busy_s += took_s


class ModelCache:
    """Opens each content once, and closes it with its last user. Safe from any thread.

    On the CPU and on a GPU the engine itself is shared. An Ascend card shares weights by content on
    its own, and each client has an engine there, which is its slot.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend
        self._shares_engines = backend.kind != "npu"
        self._contents = ContentHashes()
        self._lock = Lock()
        self._opening: dict[Hashable, Lock] = {}  # never removed: somebody may wait for it
        self._models: dict[Hashable, CachedModel] = {}
        self._numbers = itertools.count()

    def acquire(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> CachedModel:
        """The engine for these artifacts; `release` must follow. Blocks while it is opened.

        Raises what opening it raises.
        """
        contents = [self._contents.of(artifact.path) for artifact in artifacts]
        stems = [artifact.path.stem for artifact in artifacts]
        engines = [artifact.engine for artifact in artifacts]
        # Stems as well: stages are known by them.
        key: Hashable = (*zip(contents, stems, engines, strict=True), threads, *outputs)
        if not self._shares_engines:
            return self._open((next(self._numbers), key), artifacts, threads, outputs, contents)
        with self._lock:
            opening = self._opening.setdefault(key, Lock())
        with opening:  # others who want the same wait; those who want something else do not
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
        # After opening: the file may have been replaced between the reading and the opening.
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
        """Raises ArtifactFault if what was opened may be something else than what was read."""
        for artifact, content in zip(artifacts, contents, strict=True):
            if self._contents.of(artifact.path) != content:
                raise ArtifactFault(
                    f"{artifact.path}: found it changed while it was opened, expected the same "
                    "content; load the model again"
                )

    def release(self, model: CachedModel) -> None:
        """One user less. Whoever opens the same meanwhile gets another engine."""
        with self._lock:
            model.users -= 1
            if model.users:
                return
            del self._models[model.key]
        model.close()  # without the lock: it may take long

    def prepare(self, model: CachedModel, largest: Sequence[Shapes]) -> None:
        """Have executions up to these shapes find what they need.

        Call it while the engine executes nothing. Raises OutOfMemory.
        """
        with model.preparing:
            # Together with what it was prepared for before: other clients still need that.
            new = [shapes for shapes in largest if shapes not in model.largest]
            if not new:
                return
            memory = EngineMemory(self._backend.memory)
            try:
                model.engine.bind([*model.largest, *new], memory)
            except BaseException:
                memory.free_all()
                if model.largest:  # its other users still need what there was before
                    with suppress(RuntimeFault):
                        model.engine.bind(model.largest, model.memory)
                raise
            # Both exist for a moment: a failure above must leave its users what they have.
            before, model.memory = model.memory, memory
            model.largest += new
            before.free_all()
        model.expect(new)

    def models(self) -> list[CachedModel]:
        """All that are open."""
        with self._lock:
            return list(self._models.values())

    def close(self) -> None:
        """Close all engines, whoever uses them."""
        with self._lock:
            models, self._models = list(self._models.values()), {}
        for model in models:
            model.close()
