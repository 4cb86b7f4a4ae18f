"""The place of the torch engine on a card: no driver of ours, torch_npu has its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device, Watch, WatchedHost
from ge_runtime.engines.artifact import Artifact, only_graph
from ge_runtime.engines.base import Engine
from ge_runtime.engines.torch_npu import NpuTorch, TorchNpuEngine
from ge_runtime.specs import Array


class TorchNpuPlace:
    """Batches and answers lie in ordinary memory of the host.

    Copies from there block the calling thread.
    """

    kind: Final = "npu"

    def __init__(self, device: int, options: Mapping[str, str]) -> None:
        """device: its number. options: of GE, for compiling.

        Raises NoDevice, with the cure, where torch_npu or the card is missing, and EngineLost if it
        was lost before.
        """
        self._npu = NpuTorch.load(device)
        self._options = options
        self.name: Final = self._npu.device
        self.hardware: Final = str(self._npu.torch.npu.get_device_name(device))
        self.memory: Final[Device[NDArray[np.uint8]]] = _Memory(
            self.name, Watch(self.name, self._npu.allocations)
        )

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """One model.pt2: stages are not handed over on the card."""
        path = only_graph(artifacts, self.name).path
        return TorchNpuEngine.open_on(self._npu, path, outputs, self._options)

    def adopt(self, memory: Array) -> None:
        """All memory of the process is as good."""

    def disown(self, memory: Array) -> None: ...

    def freeze(self) -> None:
        self.memory.freeze()

    def close(self) -> None:
        """What torch has cached of the card goes back to it, unless that is lost."""
        self.memory.free_all()
        if self._npu.health.lost is None:
            self._npu.torch.npu.empty_cache()


class _Memory(WatchedHost):
    """See WatchedHost: torch's allocator on the card is watched."""

    kind: ClassVar[str] = "npu"
