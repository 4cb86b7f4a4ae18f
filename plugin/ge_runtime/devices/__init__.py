"""Devices: labelled buffers in device memory, the host's memory, and whether a device is lost.

Buffers are allocated at load and counted. The packages `npu` and `cuda` have the memory of
accelerators.
"""

from __future__ import annotations

import logging
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ge_runtime.errors import DeviceFault, EngineLost, OutOfMemory, RuntimeFault

__all__ = [
    "PAGE",
    "Accelerator",
    "Buffer",
    "Device",
    "DeviceHealth",
    "HostDevice",
    "Watch",
    "WatchedHost",
]


Memory = TypeVar("Memory")
"""The type of a device's buffers: an array on the host, an address on other devices."""

_log = logging.getLogger(__name__)


class Buffer(Generic[Memory]):
    """A labelled block of device memory. Created by `Device.allocate`."""

    __slots__ = ("_device", "_memory", "label", "nbytes")

    def __init__(self, device: Device[Memory], label: str, nbytes: int, memory: Memory) -> None:
        self._device = device
        self._memory: tuple[Memory] | None = (memory,)  # None once freed
        self.label = label
        self.nbytes = nbytes

    @property
    def memory(self) -> Memory:
        """The array or address. Raises DeviceFault after the buffer was freed."""
        if self._memory is None:
            raise DeviceFault(f"{self!r}: found a use after `free`, expected none")
        return self._memory[0]

    def free(self) -> None:
        """Free the memory. Raises DeviceFault if it was freed before."""
        self._device._free(self)

    def __repr__(self) -> str:
        state = "freed" if self._memory is None else "live"
        return f"<Buffer '{self.label}': {self.nbytes:,} bytes on {self._device.name}, {state}>"


class Device(ABC, Generic[Memory]):
    """The memory of a device, which is allocated at load and never while serving. Thread-safe.

    An allocation after `freeze` is a defect of the memory plan. The allocation succeeds, so that no
    request fails, but it is counted and, once per label, logged.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, capacity_bytes: int | None) -> None:
        """Initialize the memory.

        Args:
            name: The device's name in messages, e.g. "cpu".
            capacity_bytes: The device's memory; None if it is unknown.
        """
        self.name = name
        self.capacity_bytes = capacity_bytes
        self._live: set[Buffer[Memory]] = set()
        self._allocated: dict[str, int] = {}  # bytes of live buffers by label
        self._used_bytes = 0
        self._allocations = 0
        self._frozen = False
        self._late_labels: set[str] = set()
        self._late = 0
        self._lock = Lock()

    @abstractmethod
    def _obtain(self, nbytes: int) -> Memory:
        """Allocate memory. Raises MemoryError if there is not enough."""

    @abstractmethod
    def _release(self, memory: Memory) -> None:
        """Free memory that `_obtain` returned."""

    def allocate(self, label: str, nbytes: int) -> Buffer[Memory]:
        """Allocate a buffer with undefined content.

        Args:
            label: The purpose of the buffer; the bytes are counted under this label.
            nbytes: The size, 0 or more.

        Raises:
            OutOfMemory: There is not enough memory; the text has the requested and the free bytes.
            ValueError: The size is negative.
        """
        if nbytes < 0:
            raise ValueError(f"'{label}': found {nbytes} bytes, expected 0 or more")
        with self._lock:
            # The free memory is checked first, because a failed allocation would not report it.
            available = self._available()
            if available is not None and nbytes > available:
                raise OutOfMemory(
                    f"{self.name}: '{label}': found {nbytes:,} bytes wanted, expected at most "
                    f"{available:,}, which are free of {self.capacity_bytes:,}"
                )
            try:
                buffer = Buffer(self, label, nbytes, self._obtain(nbytes))
            except MemoryError as error:
                raise OutOfMemory(
                    f"{self.name}: '{label}': found {nbytes:,} bytes wanted, expected no more "
                    f"than the machine has in addition to the {self._used_bytes:,} in use"
                ) from error
            self._live.add(buffer)
            self._allocations += 1
            self._account(label, nbytes)
            if self._frozen:
                self._note_late(label, nbytes)
            return buffer

    def free_all(self) -> None:
        """Free all live buffers. Safe to call twice."""
        for buffer in tuple(self._live):  # a copy, because `free` changes the set
            buffer.free()

    def freeze(self) -> None:
        """Count each allocation from now on as a defect. Safe to call twice."""
        self._frozen = True

    @property
    def frozen(self) -> bool:
        """True if `freeze` was called."""
        return self._frozen

    @property
    def allocations(self) -> int:
        """The number of allocations so far."""
        return self._allocations

    @property
    def allocations_after_freeze(self) -> int:
        """The number of allocations since `freeze`: defects of the plan."""
        return self._late

    @property
    def allocated_bytes(self) -> dict[str, int]:
        """The bytes of live buffers by label (a copy)."""
        with self._lock:
            return dict(self._allocated)

    @property
    def used_bytes(self) -> int:
        """The bytes of all live buffers."""
        return self._used_bytes

    @property
    def free_bytes(self) -> int | None:
        """The bytes that can still be allocated; None if unknown."""
        with self._lock:
            return self._available()

    def _available(self) -> int | None:
        return None if self.capacity_bytes is None else self.capacity_bytes - self._used_bytes

    def _free(self, buffer: Buffer[Memory]) -> None:
        with self._lock:
            if buffer._memory is None:
                raise DeviceFault(f"{buffer!r}: found a second free, expected one")
            (memory,), buffer._memory = buffer._memory, None
            self._live.discard(buffer)
            self._account(buffer.label, -buffer.nbytes)
            self._release(memory)

    def _account(self, label: str, nbytes: int) -> None:
        self._used_bytes += nbytes
        total = self._allocated.pop(label, 0) + nbytes
        if total:
            self._allocated[label] = total

    def _note_late(self, label: str, nbytes: int) -> None:
        self._late += 1
        if label not in self._late_labels:
            self._late_labels.add(label)
            _log.warning(
                "%s: '%s': %s bytes allocated while serving, where all memory was planned; "
                "more of this label are counted, not logged",
                self.name,
                label,
                f"{nbytes:,}",
            )

    def __repr__(self) -> str:
        of = "" if self.capacity_bytes is None else f" of {self.capacity_bytes:,}"
        frozen = f", frozen, {self._late} allocation(s) since" if self._frozen else ""
        return f"<{type(self).__name__} {self.name}: {self._used_bytes:,}{of} bytes in use{frozen}>"


PAGE: Final = mmap.PAGESIZE
"""Alignment of host buffers in bytes. Cache lines and vector registers are never split, and two
buffers never share a page, so untouched pages of a buffer cost nothing."""


class HostDevice(Device[NDArray[np.uint8]]):
    """Host memory. Buffers are uint8 arrays [nbytes] that start at a multiple of PAGE.

    Only address space is reserved; the operating system provides pages when they are touched. The
    memory of a freed buffer is returned to the system with its last view.
    """

    kind: ClassVar[str] = "cpu"

    def __init__(self, name: str = "cpu", capacity_bytes: int | None = None) -> None:
        """Initialize the memory; without `capacity_bytes` only the operating system limits it."""
        super().__init__(name, capacity_bytes)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        try:
            raw = np.empty(nbytes + PAGE - 1, np.uint8)
        except (OverflowError, ValueError) as error:  # larger than the address space
            raise MemoryError(str(error)) from error
        start = -raw.ctypes.data % PAGE
        return raw[start : start + nbytes]

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """Do nothing: the memory is freed with its last view."""


class Watch:
    """A counter of device allocations that a library makes while serving. Thread-safe.

    The allocations count as defects of the memory plan.
    """

    def __init__(self, name: str, allocations: Callable[[], int]) -> None:
        """Initialize the counter.

        Args:
            name: The device's name in messages.
            allocations: Returns the number of the library's allocations so far.
        """
        self._name = name
        self._allocations = allocations
        self._before: int | None = None  # until `begin`
        self._warned = False

    def begin(self) -> None:
        """Count from now on, after warm-up. Safe to call twice."""
        if self._before is None:
            self._before = self._allocations()

    def late(self) -> int:
        """Return the number of allocations since `begin`; log it when it first exceeds 0."""
        late = 0 if self._before is None else self._allocations() - self._before
        if late and not self._warned:
            self._warned = True
            _log.warning(
                "%s: torch's allocator allocated memory %d time(s) while serving, although all "
                "sizes were executed before; further allocations are counted, not logged",
                self._name,
                late,
            )
        return late


class WatchedHost(HostDevice):
    """Host memory that counts the allocations of a watched library as defects of the plan."""

    def __init__(self, name: str, watch: Watch) -> None:
        """Initialize the memory; `watch` counts the library's allocations on the device `name`."""
        super().__init__(name)
        self._watch = watch

    def freeze(self) -> None:
        self._watch.begin()
        super().freeze()

    @property
    def allocations_after_freeze(self) -> int:
        return super().allocations_after_freeze + self._watch.late()


_CURE: Final = "the process has to be restarted, which a device service does by itself"


class DeviceHealth:
    """The health of one device, shared by all its users in the process. Thread-safe.

    After a user has called `mark_lost`, no user may call the device any more.
    """

    def __init__(self) -> None:
        self.lost: EngineLost | None = None
        """Why the device is lost; None while it is available. Do not raise this object itself."""

    def ensure_available(self) -> None:
        """Raise EngineLost if the device is lost."""
        if self.lost is not None:
            raise EngineLost(str(self.lost))

    def mark_lost(self, text: str) -> EngineLost:
        """Mark the device as lost for the rest of the process.

        Later calls do not change the reason, because later failures follow from the first failure.

        Args:
            text: The reason.

        Returns:
            A new error for the caller to raise, with the reason and the fix.
        """
        if self.lost is None:
            self.lost = EngineLost(f"{text}; {_CURE}")
            _log.error("%s", self.lost)
        return EngineLost(str(self.lost))


class Accelerator(Protocol):
    """A device for engines whose library accesses the device itself."""

    @property
    def name(self) -> str:
        """The device's name in config.pbtxt, e.g. "cuda:0"."""

    @property
    def index(self) -> int:
        """The device's number, for libraries."""

    @property
    def health(self) -> DeviceHealth:
        """The device's health, shared by all its users."""

    def fault(self, text: str, *, no_memory: bool) -> RuntimeFault:
        """Return the fault of a failed execution.

        Args:
            text: The library's message.
            no_memory: Whether the library reported a failed allocation.

        Returns:
            EngineLost if the device is lost, else OutOfMemory or EngineFault.
        """
