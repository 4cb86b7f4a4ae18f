"""Memory of the host that a GPU copies by itself, without a detour."""

from __future__ import annotations

import logging
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ge_runtime.cuda.driver import CudaFault
from ge_runtime.cuda.gpu import Gpu
from ge_runtime.devices import Watch, WatchedHost
from ge_runtime.devices.host import PAGE

_log = logging.getLogger(__name__)


class PinnedMemory(WatchedHost):
    """Buffers are uint8 arrays [nbytes] in whole pages, pinned as long as the buffer is not freed.

    What is still a view of them then is memory like any other. Where the system cannot pin, copies
    take the detour: slower, and the same.
    """

    kind: ClassVar[str] = "cuda"

    def __init__(self, gpu: Gpu, watch: Watch) -> None:
        """watch: of the allocator on the device, whose defects count as this memory's."""
        super().__init__(gpu.name, watch)
        self._gpu = gpu
        self._pinned: dict[int, NDArray[np.uint8]] = {}  # by address; kept alive
        self._told = False

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Pin memory of the process that is there, until `disown`. Whole pages."""
        self._pin(memory)

    def disown(self, memory: NDArray[np.uint8]) -> None:
        """Undo `adopt`. No copy to or from the memory is under way any more."""
        self._unpin(memory)

    def disown_all(self) -> None:
        """Undo `adopt` for all that is adopted. Safe to call twice."""
        for memory in [*self._pinned.values()]:
            self._unpin(memory)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        whole = super()._obtain(-(-nbytes // PAGE) * PAGE)
        if nbytes:
            self._pin(whole)
        return whole[:nbytes]

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """The last view of the bytes gives them back."""
        self._unpin(memory)

    def _pin(self, memory: NDArray[np.uint8]) -> None:
        try:
            self._gpu.context.pin(memory.ctypes.data, memory.nbytes)
        except CudaFault as fault:
            if not self._told:
                self._told = True
                _log.warning("%s: memory is not pinned, copies are slower: %s", self.name, fault)
        else:
            self._pinned[memory.ctypes.data] = memory

    def _unpin(self, memory: NDArray[np.uint8]) -> None:
        """What the GPU does not let go of stays with the process."""
        address = memory.ctypes.data
        if address not in self._pinned or self._gpu.health.lost is not None:
            return
        try:
            self._gpu.context.unpin(address)
        except CudaFault as fault:  # as when the GPU broke and nobody has noticed yet
            _log.warning("%s: memory stays pinned: %s", self.name, fault)
        else:
            del self._pinned[address]
