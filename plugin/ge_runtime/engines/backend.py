"""Device backends: a device, and the memory that this process shares with it, for one model.

A model has one backend for each entry of `devices`. What batches and answers are made of lies in
its memory; whether an engine works there or on copies is its own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ge_runtime.components import DEVICES, engines_on, load
from ge_runtime.config import DeclaredImages, RuntimeConfig, Window, kind_of
from ge_runtime.devices import Device, HostDevice
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from ge_runtime.devices.jpeg import JpegDecoder, PillowDecoder


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What config.pbtxt says of a model's part in a device."""

    executor: int = 0
    """How many executors the model has on the same device before this one."""
    workspace_bytes: int | None = None
    """The parameter 'workspace_pool_mib'; on the host it is no affair of a backend."""
    compiler_options: Mapping[str, str] = field(default_factory=dict)
    """Of GE, for engines that compile."""
    buffers: int = 0
    """How many backends of the model share that executor with it and are before it."""
    unplanned: bool = False
    """Whether engines may be opened whose memory is in no plan, as the model says."""
    images: Mapping[str, DeclaredImages] = field(default_factory=dict)
    """The inputs that are images, by name: for engines that have AIPP themselves."""
    window: Window | None = None
    """Which executions are recorded; None: none."""

    @classmethod
    def of(
        cls, config: RuntimeConfig, *, executor: int = 0, buffers: int = 0, records: bool = False
    ) -> DeviceSettings:
        """What this configuration says. records: what it asks to be profiled or dumped, too."""
        return cls(
            executor,
            config.workspace_pool_bytes,
            config.ge_options,
            buffers,
            config.unplanned_memory,
            config.images,
            config.window if records else None,
        )


class DeviceBackend(Protocol):
    """One device, for the engines and arenas of one model. Opened and closed by one thread."""

    @property
    def kind(self) -> str:
        """Of the device: "cpu", "cuda" or "npu"."""

    @property
    def name(self) -> str:
        """As config.pbtxt has it, e.g. "cpu"."""

    @property
    def hardware(self) -> str:
        """What the device is, for people: e.g. "Ascend910B3", "AscendSimulator" or "host"."""

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        """Memory of this process that the device can reach: for batches and answers."""

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """The graph of the artifact, of several a chain of them, ready to run here.

        threads: the most that one execution uses of the host's. outputs: the names that
        config.pbtxt gives the graph's outputs. The engine is the caller's to close.
        Raises ArtifactFault, PlanFault, OutOfMemory or EngineLost; then nothing stays open.
        """

    @property
    def memories(self) -> tuple[Device[Any], ...]:
        """`memory`, and all else that is accounted for: on a card its own memory, too.

        What all models on a card share is in it as well.
        """

    def register(self, memory: Array) -> None:
        """Make memory that was not had from `memory` as good as if it were, until `unregister`.

        memory: uint8 [bytes], from a page on; it must outlive the backend's use of it.
        """

    def unregister(self, memory: Array) -> None:
        """Undo `register`, once no engine works on the memory any more."""

    def freeze(self) -> None:
        """From now on an allocation is a defect. Safe to call twice."""

    def close(self) -> None:
        """Free the memory, after the engines are closed. Safe to call twice.

        What answers are still views of stays theirs until the last of them is gone.
        """


@runtime_checkable
class Watched(Protocol):
    """What a backend tells besides whose device says how it is. From any thread."""

    def fault(self) -> str:
        """Why the device is not to be trusted with an execution; empty if it is well."""

    def telemetry(self) -> dict[str, float]:
        """What the device tells of itself, by the names of gauges: see `GAUGES`."""


@runtime_checkable
class KeepsRows(Protocol):
    """What a backend does besides that has memory where the engines of other models find rows."""

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        """See `DeviceBackend`."""

    def allocate_rows(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """The address of so many bytes on the device, and what gives them back.

        A multiple of 64. Raises OutOfMemory.
        """


@runtime_checkable
class LetsRowsGo(Protocol):
    """What a backend has besides whose models take rows that stay on the device."""

    def let_rows_go(self, handles: Array) -> None:
        """Nobody will read the rows of these handles, [rows, 4]: their request has failed."""


@runtime_checkable
class DecodesJpeg(Protocol):
    """What a backend has besides whose device decodes JPEG files."""

    def jpeg_decoder(self, host: PillowDecoder) -> JpegDecoder | None:
        """The device's, which the backend closes; None if it has none that can be used.

        host: for files that the device does not take.
        """


class HostBackend:
    """The CPU, whose engines work in the memory of this process.

    An engine's class has `open(path, threads, outputs)`, with the meaning of `DeviceBackend.open`.
    """

    kind: ClassVar[str] = HostDevice.kind

    def __init__(self, name: str, hardware: str = "host", memory: HostDevice | None = None) -> None:
        self.name: Final = name
        self.hardware: Final = hardware
        self.memory: Final[Device[NDArray[np.uint8]]] = memory or HostDevice(name)

    @classmethod
    def for_device(cls, device: str, settings: DeviceSettings) -> HostBackend:
        """The backend of the device that config.pbtxt calls `device`."""
        return cls(device)

    @property
    def memories(self) -> tuple[Device[Any], ...]:
        return (self.memory,)

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        return open_engine(*artifacts, threads=threads, outputs=outputs)

    def allocate_rows(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """Memory of this process."""
        buffer = self.memory.allocate("resident", nbytes)
        return int(buffer.memory.ctypes.data), buffer.free

    def register(self, memory: Array) -> None:
        """All memory of the process is as good."""

    def unregister(self, memory: Array) -> None: ...

    def freeze(self) -> None:
        self.memory.freeze()

    def close(self) -> None:
        self.memory.free_all()


def open_backend(
    device: str, settings: DeviceSettings | None = None, *, engine: str = ""
) -> DeviceBackend:
    """The backend of the device that config.pbtxt calls `device`, by the table of components.

    engine: what will execute there, as some bring a backend of their own.
    Raises NoDevice where there is no such device, or none that can be used, and EngineLost if it
    was lost before.
    """
    kind = kind_of(device)
    entry = engines_on(kind).get(engine)
    backend_class = load(entry.backend_class if entry else DEVICES[kind].backend)
    return cast(DeviceBackend, backend_class.for_device(device, settings or DeviceSettings()))


def open_engine(*artifacts: Artifact, threads: int, outputs: Sequence[str]) -> Engine:
    """The graph of the artifact, ready to run; of several, a chain of them in this order.

    threads: the most that one execution uses. outputs: the names that config.pbtxt gives the
    graph's outputs; in a chain the last stage's alone may lack names of their own.
    Raises ArtifactFault with all that cannot be opened or does not fit; then nothing stays open.
    """
    if len(artifacts) == 1:
        return _open(artifacts[0], threads, outputs)
    stages: dict[str, Engine] = {}
    faults: list[str] = []
    try:
        for artifact in artifacts:
            # What no earlier stage gives is the last one's: so a graph there may return one bare
            # tensor, which has no name of its own.
            names = _left(stages, outputs) if artifact is artifacts[-1] else ()
            try:
                stages[artifact.path.stem] = _open(artifact, threads, names)
            except ArtifactFault as fault:
                faults.append(str(fault))  # all stages are tried, so that one load tells all
        if faults:
            raise ArtifactFault("\n".join(faults))
        # Loaded for models of several stages alone.
        from ge_runtime.engines.chain import ChainEngine

        return ChainEngine.of(stages, outputs)
    except ArtifactFault:
        for engine in stages.values():
            engine.close()
        raise


def _left(stages: Mapping[str, Engine], outputs: Sequence[str]) -> list[str]:
    """The outputs that none of these stages gives."""
    given = {tensor.name for engine in stages.values() for tensor in engine.signature.outputs}
    return [name for name in outputs if name not in given]


def _open(artifact: Artifact, threads: int, outputs: Sequence[str]) -> Engine:
    # "cpu": backends of other devices open their engines themselves, each in its own way.
    engine_class = load(engines_on("cpu")[artifact.engine].engine)
    return cast(Engine, engine_class.open(artifact.path, threads=threads, outputs=outputs))
