"""A card's memory, and memory of the host that its copies reach without a detour."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.codes import Kind
from ge_runtime.ascend.context import DeviceContext
from ge_runtime.ascend.driver import Address, Driver
from ge_runtime.devices import Device
from ge_runtime.devices.health import DeviceHealth

_NOWHERE: Final = Address(0)

_log = logging.getLogger(__name__)


class DeviceAccess:
    """A card as its memories use it: until it is lost."""

    def __init__(
        self, name: str, driver: Driver, home: DeviceContext, health: DeviceHealth
    ) -> None:
        """name: of the card. home: current in the calling thread."""
        self.driver = driver
        self.home = home
        self._name = name
        self._health = health
        self.capacity_bytes = driver.memory_info()[1]
        """Of the card's own memory."""
        self.pinned_out = 0
        """Blocks of pinned memory that are not given back yet."""
        self._pinning = Lock()
        self._unpinned: deque[Address] = deque()  # without a lock: filled by `__del__`

    @property
    def lost(self) -> bool:
        """Whether the card is."""
        return self._health.lost is not None

    @contextmanager
    def noticing(self, path: Path | None = None) -> Iterator[None]:
        """Raises EngineLost where a call, for the length of a `with`, finds the card lost.

        So whoever undoes things after it knows, and makes no call any more. path: the file that
        the calls are about; their DriverFault tells it.
        """
        try:
            yield
        except DriverFault as fault:
            fault.path = path or fault.path
            if fault.kind is Kind.LOST:
                raise self._health.lose(f"{fault.path or self._name}: {fault}") from fault
            raise

    def enter(self) -> None:
        """Let the calling thread use the card. Raises EngineLost if it is lost."""
        self._health.ensure_there()
        self.home.enter_device()

    @contextmanager
    def using(self) -> Iterator[None]:
        """The same for the length of a `with`, `noticing`."""
        with self.noticing():
            self.enter()
            yield

    def pin(self, nbytes: int) -> Address:
        """Pinned memory of the host; raises MemoryError if there is no more. From any thread."""
        self.reap()
        with self._pinning, self.using():
            address = obtain(self.driver.malloc_host, nbytes)
            self.pinned_out += 1
            return address

    def unpin_later(self, address: Address) -> None:
        """Nobody reads this block of pinned memory any more. From any thread, at any moment."""
        self._unpinned.append(address)

    def reap(self) -> None:
        """Give back the pinned memory that nobody reads any more. From any thread."""
        with self._pinning:
            while self._unpinned and not self.lost:
                address = self._unpinned.popleft()
                self.pinned_out -= 1  # what cannot be freed keeps nobody from closing the card
                with self.using():
                    self.driver.free_host(address)


def obtain(allocate: Callable[[int], Address], nbytes: int) -> Address:
    """`allocate(nbytes)`. Raises MemoryError if there are not as many, else DriverFault."""
    try:
        return allocate(nbytes)
    except DriverFault as fault:
        if fault.kind is Kind.MEMORY:
            raise MemoryError(str(fault)) from fault
        raise


class CardMemory(Device[Address]):
    """Buffers are addresses on the card, multiples of 64; no byte can be reached from the host.

    What is free is what the card says, for other processes use it too.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, access: DeviceAccess, name: str) -> None:
        super().__init__(name, access.capacity_bytes)
        self._access = access

    def _available(self) -> int:
        with self._access.using():
            return self._access.driver.memory_info()[0]

    def _obtain(self, nbytes: int) -> Address:
        if nbytes == 0:
            return _NOWHERE
        with self._access.using():
            return obtain(self._access.driver.malloc, nbytes)

    def _release(self, memory: Address) -> None:
        if memory != _NOWHERE and not self._access.lost:
            with self._access.using():
                self._access.driver.free(memory)


class PinnedMemory(Device[NDArray[np.uint8]]):
    """Buffers are uint8 arrays [nbytes] in pinned memory of the host, from a multiple of 64 on.

    A freed buffer's bytes go back when the last view of them is gone.
    """

    kind: ClassVar[str] = "npu"

    def __init__(self, access: DeviceAccess, name: str) -> None:
        super().__init__(name, None)
        self._access = access
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._adopted: dict[Address, NDArray[np.uint8]] = {}

    def holds(self, array: NDArray[Any]) -> bool:
        """Whether a copy of the array can be queued: it is pinned, and starts as it must."""
        start = array.ctypes.data
        end = start + array.nbytes
        return start % _ALIGNMENT == 0 and any(
            first <= start and end <= last for first, last in self._ranges
        )

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Pin memory of the process that is there, until `disown`; it is kept alive.

        Whole pages. Where it cannot be pinned, copies of it are made at once, not in a stream.
        """
        address = Address(memory.ctypes.data)
        try:
            with self._access.using():
                self._access.driver.host_register(address, memory.nbytes)
        except DriverFault as fault:
            _log.warning("%s: copies hold up other threads, as %s", self.name, fault)
            return
        with self._lock:
            self._adopted[address] = memory
            self._ranges = (*self._ranges, (address, address + memory.nbytes))

    def disown(self, memory: NDArray[np.uint8]) -> None:
        """Undo `adopt`. No copy to or from the memory is queued any more.

        Memory that the card does not let go of stays with the process.
        """
        address = Address(memory.ctypes.data)
        with self._lock:
            if address not in self._adopted:
                return
            self._forget(address)
        if not self._access.lost:
            with self._access.using():
                self._access.driver.host_unregister(address)
        with self._lock:
            self._adopted.pop(address, None)

    def disown_all(self) -> None:
        """Undo `adopt` for all that is adopted. Safe to call twice."""
        for memory in [*self._adopted.values()]:
            self.disown(memory)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        if nbytes == 0:
            return np.empty(0, np.uint8)
        address = self._access.pin(nbytes)
        self._ranges = (*self._ranges, (address, address + nbytes))
        return np.asarray(_Pinned(address, nbytes, self._access.unpin_later))

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """The last view of the bytes gives them back."""
        self._forget(Address(memory.ctypes.data))

    def _forget(self, start: Address) -> None:
        self._ranges = tuple(own for own in self._ranges if own[0] != start)


class _Pinned:
    """Pinned memory as the base of all arrays made of it: gone when the last of them is."""

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


_ALIGNMENT: Final = 64
"""Of both ends of a queued copy: documented up to CANN 8.1."""
