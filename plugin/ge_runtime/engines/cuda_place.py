"""The place of engines on an NVIDIA GPU: ONNX Runtime's and torch's, each with memory of its own.

Never run on a GPU: see the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.cuda.gpu import PROCESS_GPUS
from ge_runtime.cuda.memory import PinnedMemory
from ge_runtime.devices import Device, Watch
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.engines.onnx_cuda import OnnxCudaEngine
from ge_runtime.engines.torch_cuda import CudaTorch, TorchCudaEngine
from ge_runtime.errors import ArtifactFault, PlanFault
from ge_runtime.specs import Array


class CudaPlace:
    """Batches and answers lie in pinned memory of the host."""

    kind: Final = PinnedMemory.kind

    def __init__(self, device: int, *, workspace_bytes: int | None = None) -> None:
        """device: its number. workspace_bytes: the most that an engine's workspace may take there.

        Raises NoDevice, with the cure, where driver or GPU is missing, and EngineLost if it was
        lost before.
        """
        self._gpu = PROCESS_GPUS.gpu(device)
        self.name: Final = self._gpu.name
        self.hardware: Final = self._gpu.hardware
        self._workspace_bytes = workspace_bytes
        self._torch: CudaTorch | None = None  # until an engine needs it
        self._loading = Lock()
        self._memory = PinnedMemory(self._gpu, Watch(self.name, self._allocations))

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        return self._memory

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """One model.onnx or model.pt2."""
        artifact, *others = artifacts
        if others:
            stages = ", ".join(artifact.path.name for artifact in artifacts)
            raise ArtifactFault(
                f"{self.name}: found the stages {stages}, expected one graph: on a GPU nothing is "
                "handed over from stage to stage; export them as one, or as models of their own"
            )
        self._gpu.health.ensure_there()
        if artifact.engine == "onnxruntime":
            return OnnxCudaEngine.open_on(self._gpu, artifact.path, threads, self._workspace_bytes)
        if self._workspace_bytes is not None:
            raise PlanFault(
                f"{artifact.path}: found 'workspace_pool_mib', expected none with engine torch, "
                "whose allocator knows no limit of one model's"
            )
        with self._loading:
            self._torch = self._torch or CudaTorch.load(self._gpu)
        return TorchCudaEngine.open_on(self._torch, artifact.path, threads, outputs)

    def adopt(self, memory: Array) -> None:
        """Its pages are pinned."""
        self._memory.adopt(memory)

    def disown(self, memory: Array) -> None:
        self._memory.disown(memory)

    def freeze(self) -> None:
        self._memory.freeze()

    def close(self) -> None:
        self._memory.free_all()
        self._memory.disown_all()

    def _allocations(self) -> int:
        return 0 if self._torch is None else self._torch.allocations()
