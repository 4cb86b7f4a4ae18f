"""A card's memory, and pinned host memory, which is required for asynchronous copies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.npu.driver.device import AscendDevice, allocate
from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.return_codes import DriverFault

_NOWHERE: Final = Address(0)
QUEUED_ALIGNMENT: Final = 64
"""Alignment of source and target of a queued copy, as documented up to CANN 8.1."""
_GRANULE: Final = 32

_log = logging.getLogger(__name__)


def part_bytes(nbytes: int) -> int:
    """Return the size that a buffer of `nbytes` needs as part of a block.

    Operators may access the padding that malloc adds: it rounds up to 32 bytes and adds 32 more
    (documentation of aclrtMalloc).
    """
    return -(-nbytes // _GRANULE) * _GRANULE + _GRANULE


class CardMemory(Device[Address]):
    """A card's memory. Buffers are addresses on the card, aligned to 64 bytes.

    The free memory is the one that the card reports, because other processes use it as well.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, device: AscendDevice) -> None:
        super().__init__(device.name, device.capacity_bytes)
        self._device = device

    def _available(self) -> int:
        with self._device.using():
            return self._device.driver.memory_info()[0]

    def _obtain(self, nbytes: int) -> Address:
        if nbytes == 0:  # malloc refuses it
            return _NOWHERE
        with self._device.using():
            return allocate(self._device.driver.malloc, nbytes)

    def _release(self, memory: Address) -> None:
        if memory != _NOWHERE and self._device.lost is None:
            with self._device.using():
                self._device.driver.free(memory)


class PinnedMemory(Device[NDArray[np.uint8]]):
    """Pinned host memory. Buffers are uint8 arrays [nbytes], aligned to 64 bytes.

    The memory of a freed buffer is released with its last view.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, device: AscendDevice) -> None:
        super().__init__(f"{device.name} (pinned)", None)
        self._device = device
        # Replaced and never modified: `holds` reads it in each execution without a lock.
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._registered: dict[Address, NDArray[np.uint8]] = {}

    def holds(self, array: NDArray[Any]) -> bool:
        """Return whether a copy of the array can be queued: it is pinned and aligned."""
        start = array.ctypes.data
        end = start + array.nbytes
        return start % QUEUED_ALIGNMENT == 0 and any(
            first <= start and end <= last for first, last in self._ranges
        )

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Pin whole pages of existing memory until `unregister`, and keep them alive.

        If the memory cannot be pinned, copies of it are synchronous.
        """
        address = Address(memory.ctypes.data)
        try:
            with self._device.using():
                self._device.driver.host_register(address, memory.nbytes)
        except DriverFault as fault:
            _log.warning("%s: not pinned, so copies block other threads: %s", self.name, fault)
            return
        with self._lock:
            self._registered[address] = memory
            self._ranges = (*self._ranges, (address, address + memory.nbytes))

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Undo `register`. No copy to or from the memory may be queued.

        Memory that cannot be unpinned is never freed.
        """
        address = Address(memory.ctypes.data)
        with self._lock:
            if address not in self._registered:
                return
            self._forget(address)  # first, so that no more copies of it are queued
        if self._device.lost is None:
            with self._device.using():
                self._device.driver.host_unregister(address)
        with self._lock:
            # Kept alive until here: memory that the driver has pinned must not be freed.
            self._registered.pop(address, None)

    def unregister_all(self) -> None:
        """Undo `register` for all registered memory. Safe to call twice."""
        for memory in [*self._registered.values()]:
            self.unregister(memory)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        if nbytes == 0:  # malloc_host refuses it
            return np.empty(0, np.uint8)
        address = self._device.pin(nbytes)
        self._ranges = (*self._ranges, (address, address + nbytes))
        return np.asarray(_Pinned(address, nbytes, self._device.unpin_later))

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """Forget the memory; it is freed with its last view."""
        self._forget(Address(memory.ctypes.data))

    def _forget(self, start: Address) -> None:
        self._ranges = tuple(own for own in self._ranges if own[0] != start)


class _Pinned:
    """The base object of all arrays in a block; frees it when the last array is collected."""

    __slots__ = ("__array_interface__", "_address", "_unpin")

    def __init__(self, address: Address, nbytes: int, unpin: Callable[[Address], None]) -> None:
        self._address = address
        self._unpin = unpin
        self.__array_interface__: dict[str, Any] = {
            "data": (int(address), False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._unpin(self._address)
