"""The device backend of an NVIDIA GPU, on which ONNX Runtime and torch execute.

Each library allocates its own memory on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from ge_runtime.components import engines_on, load
from ge_runtime.cuda import PROCESS_GPUS, PinnedMemory
from ge_runtime.devices import Device, Watch
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.backend import DeviceSettings
from ge_runtime.engines.base import Engine
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array


class CudaBackend:
    """A GPU; batches and responses are in pinned host memory.

    An engine class has `open_on(gpu, path, threads, outputs, workspace_bytes)`. An engine may have
    a function `device_allocations`, which returns the number of device allocations of its library
    so far. Allocations while serving count as defects of the memory plan.
    """

    kind: ClassVar[str] = PinnedMemory.kind

    def __init__(self, device: int, *, workspace_bytes: int | None = None) -> None:
        """Open a GPU.

        Args:
            device: The number of the GPU.
            workspace_bytes: Maximum workspace of an engine; None: unlimited.

        Raises:
            NoDevice: The driver or the GPU is missing; the text says how to fix it.
            EngineLost: The GPU was lost before.
        """
        self._gpu = PROCESS_GPUS.gpu(device)
        self.name: Final = self._gpu.name
        self.hardware: Final = self._gpu.hardware
        self._workspace_bytes = workspace_bytes
        self._device_allocations: Callable[[], int] = lambda: 0
        # A lambda, not the function itself: `open` replaces the function.
        self._memory = PinnedMemory(self._gpu, Watch(self.name, lambda: self._device_allocations()))

    @classmethod
    def for_device(cls, device: str, settings: DeviceSettings) -> CudaBackend:
        """Open the backend of the device that config.pbtxt calls `device`."""
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
                f"{self.name}: found the stages {stages}, expected one graph: stages are not "
                "supported on a GPU. Export them as one graph, or as separate models"
            )
        self._gpu.health.ensure_available()
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
        """Pin the pages of the memory."""
        self._memory.register(memory)

    def unregister(self, memory: Array) -> None:
        self._memory.unregister(memory)

    def freeze(self) -> None:
        self._memory.freeze()

    def close(self) -> None:
        self._memory.free_all()
        self._memory.unregister_all()
