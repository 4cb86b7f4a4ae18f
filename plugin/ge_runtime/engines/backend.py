"""Device backends: one model's access to a device, and the memory shared with the device.

A model has one backend for each entry of `devices`. Batches and responses are allocated in the
backend's memory; an engine works there or on copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ge_runtime.components import DEVICES, engines_on, load
from ge_runtime.config import DeclaredImages, RuntimeConfig, TimeLimits, Window, kind_of
from ge_runtime.devices import Device, HostDevice
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from ge_runtime.devices.jpeg import JpegDecoder, PillowDecoder


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """A model's settings for one backend, from config.pbtxt."""

    executor: int = 0
    """Index of the executor among the model's executors on the device, from 0."""
    workspace_bytes: int | None = None
    """The parameter 'workspace_pool_mib' in bytes; backends of the host ignore it."""
    compiler_options: Mapping[str, str] = field(default_factory=dict)
    """Options of GE, for engines that compile."""
    buffers: int = 0
    """Index of the buffer set among the executor's buffer sets, from 0."""
    unplanned: bool = False
    """True if engines with unplanned memory may be opened ('unplanned_memory')."""
    images: Mapping[str, DeclaredImages] = field(default_factory=dict)
    """The declared images by input, for engines that convert images with AIPP."""
    window: Window | None = None
    """The executions to profile or dump; None disables both."""
    limits: TimeLimits = field(default_factory=TimeLimits)
    """Time limits of executions on a card."""
    torch_compiler: str = "ge"
    """The compiler of the engine torch on a card: "ge" or "npugraph_ex"."""

    @classmethod
    def of(
        cls, config: RuntimeConfig, *, executor: int = 0, buffers: int = 0, records: bool = False
    ) -> DeviceSettings:
        """Return the settings in `config`. records: True to include profiles and dumps."""
        return cls(
            executor,
            config.workspace_pool_bytes,
            config.ge_options,
            buffers,
            config.unplanned_memory,
            config.images,
            config.window if records else None,
            config.time_limits,
            config.torch_compiler,
        )


class DeviceBackend(Protocol):
    """One device, for the engines and arenas of one model. Opened and closed by one thread."""

    @property
    def kind(self) -> str:
        """The device type: "cpu", "cuda" or "npu"."""

    @property
    def name(self) -> str:
        """The device's name in config.pbtxt, e.g. "cpu" or "npu:0"."""

    @property
    def hardware(self) -> str:
        """The hardware's name, for people: e.g. "Ascend910B3", "AscendSimulator" or "host"."""

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        """Memory of this process that the device can access, for batches and responses."""

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """Open the graph of one artifact, or a chain of several.

        Args:
            artifacts: The files, in order of execution.
            threads: Maximum number of host threads that one execution uses.
            outputs: Names of the graph's outputs in config.pbtxt.

        Returns:
            The engine; the caller closes it.

        Raises:
            ArtifactFault: A file cannot be opened, or the files do not fit together.
            PlanFault: The settings do not fit the files.
            OutOfMemory: There is not enough memory.
            EngineLost: The device is lost.
        """

    @property
    def memories(self) -> tuple[Device[Any], ...]:
        """All memory with counted allocations: `memory`, and on a card also the card's own memory.

        Includes memory that all models on a card share.
        """

    def register(self, memory: Array) -> None:
        """Let the device access memory that was not allocated from `memory`, until `unregister`.

        Args:
            memory: uint8 [bytes], starting at a page boundary. The caller keeps it alive until
                `unregister`.
        """

    def unregister(self, memory: Array) -> None:
        """Undo `register`. No engine may use the memory any more."""

    def freeze(self) -> None:
        """Count each allocation from now on as a defect. Safe to call twice."""

    def close(self) -> None:
        """Free the memory. Safe to call twice; the engines must be closed before.

        Memory that responses still refer to is freed with the last of them.
        """


@runtime_checkable
class Watched(Protocol):
    """Extension of `DeviceBackend` for devices that report their state. Thread-safe."""

    def fault(self) -> str:
        """Return why the device is not healthy; empty if it is healthy."""

    def telemetry(self) -> dict[str, float]:
        """Return the values of the gauges of `GAUGES` that the device reports, by name."""


@runtime_checkable
class KeepsRows(Protocol):
    """Extension of `DeviceBackend` for devices with memory that engines of several models share."""

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        """See `DeviceBackend`."""

    def allocate_rows(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """Allocate device memory for rows.

        Returns:
            The address, a multiple of 64, and a function that frees the memory.

        Raises:
            OutOfMemory: There is not enough memory.
        """


@runtime_checkable
class ReleasesRows(Protocol):
    """Extension of `DeviceBackend` for models whose rows stay on the device between models."""

    def release_rows(self, handles: Array) -> None:
        """Free the rows of a failed request.

        Args:
            handles: UINT64 [rows, 4].
        """


@runtime_checkable
class DecodesJpeg(Protocol):
    """Extension of `DeviceBackend` for devices that decode JPEG files."""

    def jpeg_decoder(self, host: PillowDecoder) -> JpegDecoder | None:
        """Return the device's decoder, which the backend closes; None if it has no decoder.

        Args:
            host: Decodes the files that the device does not support.
        """


class HostBackend:
    """The CPU. Engines work in the memory of this process.

    An engine class has `open(path, threads, outputs)`, with the arguments of `DeviceBackend.open`.
    """

    kind: ClassVar[str] = HostDevice.kind

    def __init__(self, name: str, hardware: str = "host", memory: HostDevice | None = None) -> None:
        self.name: Final = name
        self.hardware: Final = hardware
        self.memory: Final[Device[NDArray[np.uint8]]] = memory or HostDevice(name)

    @classmethod
    def for_device(cls, device: str, settings: DeviceSettings) -> HostBackend:
        """Open the backend of the device that config.pbtxt calls `device`."""
        return cls(device)

    @property
    def memories(self) -> tuple[Device[Any], ...]:
        return (self.memory,)

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        return open_engine(*artifacts, threads=threads, outputs=outputs)

    def allocate_rows(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """Allocate memory of this process."""
        buffer = self.memory.allocate("resident", nbytes)
        return int(buffer.memory.ctypes.data), buffer.free

    def register(self, memory: Array) -> None:
        """Do nothing: engines can access all memory of this process."""

    def unregister(self, memory: Array) -> None: ...

    def freeze(self) -> None:
        self.memory.freeze()

    def close(self) -> None:
        self.memory.free_all()


def open_backend(
    device: str, settings: DeviceSettings | None = None, *, engine: str = ""
) -> DeviceBackend:
    """Open the backend class that the table in `components` lists for a device.

    Args:
        device: Name of the device in config.pbtxt.
        settings: The model's settings for the device.
        engine: Name of the engine; some engines bring their own backend.

    Raises:
        NoDevice: There is no such device, or it cannot be used.
        EngineLost: The device was lost before.
    """
    kind = kind_of(device)
    entry = engines_on(kind).get(engine)
    backend_class = load(entry.backend_class if entry else DEVICES[kind].backend)
    return cast(DeviceBackend, backend_class.for_device(device, settings or DeviceSettings()))


def open_engine(*artifacts: Artifact, threads: int, outputs: Sequence[str]) -> Engine:
    """Open the graph of one artifact on the CPU, or a chain of several in this order.

    Args:
        artifacts: The files, in order of execution.
        threads: Maximum number of threads that one execution uses.
        outputs: Names of the graph's outputs in config.pbtxt. In a chain, only the last
            stage's graph may have outputs without names.

    Raises:
        ArtifactFault: Lists all files that cannot be opened, or the stages that do not fit
            together. Nothing stays open.
    """
    if len(artifacts) == 1:
        return _open(artifacts[0], threads, outputs)
    stages: dict[str, Engine] = {}
    faults: list[str] = []
    try:
        for artifact in artifacts:
            # Outputs that no earlier stage produces belong to the last stage. So its graph may
            # return one bare tensor, which has no name.
            names = _missing(stages, outputs) if artifact is artifacts[-1] else ()
            try:
                stages[artifact.path.stem] = _open(artifact, threads, names)
            except ArtifactFault as fault:
                faults.append(str(fault))  # go on: one load reports the faults of all stages
        if faults:
            raise ArtifactFault("\n".join(faults))
        # Imported here: only models with several stages need it.
        from ge_runtime.engines.chain import ChainEngine

        return ChainEngine.of(stages, outputs)
    except ArtifactFault:
        for engine in stages.values():
            engine.close()
        raise


def _missing(stages: Mapping[str, Engine], outputs: Sequence[str]) -> list[str]:
    given = {tensor.name for engine in stages.values() for tensor in engine.signature.outputs}
    return [name for name in outputs if name not in given]


def _open(artifact: Artifact, threads: int, outputs: Sequence[str]) -> Engine:
    # "cpu": backends of other devices open their engines themselves.
    engine_class = load(engines_on("cpu")[artifact.engine].engine)
    return cast(Engine, engine_class.open(artifact.path, threads=threads, outputs=outputs))
