"""The device backend of an NVIDIA GPU.

What executes there are ONNX Runtime and torch, each with memory of its own on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from ge_runtime.components import engines_on, load
from ge_runtime.cuda.gpu import PROCESS_GPUS, PinnedMemory
from ge_runtime.devices import Device, Watch
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.backend import DeviceSettings
from ge_runtime.engines.base import Engine
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array


class CudaBackend:
    """Batches and answers lie in pinned memory of the host.

    An engine's class has `open_on(gpu, path, threads, outputs, workspace_bytes)`. Where an engine
    has `device_allocations`, a function, that tells how often its library has asked the GPU for
    memory, and what it asks while serving counts as an allocation while serving.
    """

    kind: ClassVar[str] = PinnedMemory.kind

    def __init__(self, device: int, *, workspace_bytes: int | None = None) -> None:
        """device: its number. workspace_bytes: the most that an engine's workspace may take there.

        Raises NoDevice, with the cure, where driver or GPU is missing, and EngineLost if it was
        lost before.
        """
        self._gpu = PROCESS_GPUS.gpu(device)
        self.name: Final = self._gpu.name
        self.hardware: Final = self._gpu.hardware
        self._workspace_bytes = workspace_bytes
        self._device_allocations: Callable[[], int] = _none  # until an engine tells them
        # A lambda, not the function: `open` puts the engine's own in its place.
        self._memory = PinnedMemory(self._gpu, Watch(self.name, lambda: self._device_allocations()))

    @classmethod
    def for_device(cls, device: str, settings: DeviceSettings) -> CudaBackend:
        """The backend of the device that config.pbtxt calls `device`."""
        return cls(int(device.partition(":")[2]), workspace_bytes=settings.workspace_bytes)

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        return self._memory

    @property
    def memories(self) -> tuple[Device[Any], ...]:
        return (self._memory,)

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        artifact, *others = artifacts
        if others:
            stages = ", ".join(artifact.path.name for artifact in artifacts)
            raise ArtifactFault(
                f"{self.name}: found the stages {stages}, expected one graph: on a GPU nothing is "
                "handed over from stage to stage; export them as one, or as models of their own"
            )
        self._gpu.health.ensure_there()
        engine_class = load(engines_on(self.kind)[artifact.engine].engine)
        engine = engine_class.open_on(
            self._gpu,
            artifact.path,
            threads=threads,
            outputs=outputs,
            workspace_bytes=self._workspace_bytes,
        )
        self._device_allocations = getattr(engine, "device_allocations", self._device_allocations)
        return cast(Engine, engine)

    def register(self, memory: Array) -> None:
        """Its pages are pinned."""
        self._memory.register(memory)

    def unregister(self, memory: Array) -> None:
        self._memory.unregister(memory)

    def freeze(self) -> None:
        self._memory.freeze()

    def close(self) -> None:
        self._memory.free_all()
        self._memory.unregister_all()


def _none() -> int:
    return 0
