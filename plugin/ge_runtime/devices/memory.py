"""Memory of devices: labelled buffers, allocated at load and counted; and the host's memory."""

from __future__ import annotations

import logging
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import ClassVar, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ge_runtime.errors import DeviceFault, OutOfMemory

Memory = TypeVar("Memory")
"""What a device gives for bytes: an array on the host, elsewhere an address."""

_log = logging.getLogger(__name__)


class Buffer(Generic[Memory]):
    """Bytes of a device under a label. Made by `Device.allocate`."""

    __slots__ = ("_device", "_memory", "label", "nbytes")

    def __init__(self, device: Device[Memory], label: str, nbytes: int, memory: Memory) -> None:
        self._device = device
        self._memory: tuple[Memory] | None = (memory,)  # None once freed
        self.label = label
        self.nbytes = nbytes

    @property
    def memory(self) -> Memory:
        """What the device gave. Raises DeviceFault once the buffer is freed."""
        if self._memory is None:
            raise DeviceFault(f"{self!r}: found a use after its free, expected none")
        return self._memory[0]

    def free(self) -> None:
        """Give the bytes back. Raises DeviceFault if they were given back before."""
        self._device._take_back(self)

    def __repr__(self) -> str:
        state = "freed" if self._memory is None else "live"
        return f"<Buffer '{self.label}': {self.nbytes:,} bytes on {self._device.name}, {state}>"


class Device(ABC, Generic[Memory]):
    """Memory that is allocated at load, under labels, and never while serving.

    After `freeze` an allocation still succeeds, since a request must not suffer for a defect in
    the plan, but it is counted and, once per label, logged. Safe from any thread.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, capacity_bytes: int | None) -> None:
        """name: for people, e.g. "cpu". capacity_bytes: None where nobody knows."""
        self.name = name
        self.capacity_bytes = capacity_bytes
        self._live: set[Buffer[Memory]] = set()
        self._allocated: dict[str, int] = {}  # label -> bytes of live buffers
        self._used_bytes = 0
        self._allocations = 0
        self._frozen = False
        self._late_labels: set[str] = set()
        self._late = 0
        self._lock = Lock()

    @abstractmethod
    def _obtain(self, nbytes: int) -> Memory:
        """The bytes themselves. Raises MemoryError if there are not as many."""

    @abstractmethod
    def _release(self, memory: Memory) -> None:
        """Give back the bytes that `_obtain` gave."""

    def allocate(self, label: str, nbytes: int) -> Buffer[Memory]:
        """`nbytes` (0 or more) bytes of undefined content; `label` says what for.

        Raises OutOfMemory with the label, what was wanted and what is available, ValueError for
        negative sizes.
        """
        if nbytes < 0:
            raise ValueError(f"'{label}': found {nbytes} bytes, expected 0 or more")
        with self._lock:
            # Before the bytes are asked for: a refusal would not tell how much there is.
            available = self._available()
            if available is not None and nbytes > available:
                raise OutOfMemory(
                    f"{self.name}: '{label}': found {nbytes:,} bytes wanted, expected at most "
                    f"{available:,}, what is free of {self.capacity_bytes:,}"
                )
            try:
                buffer = Buffer(self, label, nbytes, self._obtain(nbytes))
            except MemoryError as error:
                raise OutOfMemory(
                    f"{self.name}: '{label}': found {nbytes:,} bytes wanted, expected no more "
                    f"than the machine gives beside the {self._used_bytes:,} in use"
                ) from error
            self._live.add(buffer)
            self._allocations += 1
            self._account(label, nbytes)
            if self._frozen:
                self._note_late(label, nbytes)
            return buffer

    def free_all(self) -> None:
        """Free all live buffers. Safe to call twice."""
        for buffer in tuple(self._live):  # a copy: each leaves the set as it is freed
            buffer.free()

    def freeze(self) -> None:
        """From now on an allocation is a defect. Safe to call twice."""
        self._frozen = True

    @property
    def frozen(self) -> bool:
        """Whether `freeze` was called."""
        return self._frozen

    @property
    def allocations(self) -> int:
        """How many there have been."""
        return self._allocations

    @property
    def allocations_after_freeze(self) -> int:
        """Defects so far."""
        return self._late

    @property
    def allocated_bytes(self) -> dict[str, int]:
        """Bytes of the live buffers by label: a copy."""
        with self._lock:
            return dict(self._allocated)

    @property
    def used_bytes(self) -> int:
        """Bytes of all live buffers."""
        return self._used_bytes

    @property
    def free_bytes(self) -> int | None:
        """What can still be allocated; None where nobody knows."""
        with self._lock:
            return self._available()

    def _available(self) -> int | None:
        return None if self.capacity_bytes is None else self.capacity_bytes - self._used_bytes

    def _take_back(self, buffer: Buffer[Memory]) -> None:
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
"""Bytes. Buffers start at pages: cache lines and vector registers are never split, and two
buffers never share a page, so what is untouched in one costs nothing."""


class HostDevice(Device[NDArray[np.uint8]]):
    """Buffers are uint8 arrays [nbytes] that start at a multiple of PAGE.

    Address space is reserved; the operating system provides pages as they are touched. A freed
    buffer's bytes return to it when the last view of them goes.
    """

    kind: ClassVar[str] = "cpu"

    def __init__(self, name: str = "cpu", capacity_bytes: int | None = None) -> None:
        """capacity_bytes: a limit to keep to; without one the operating system decides."""
        super().__init__(name, capacity_bytes)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        try:
            raw = np.empty(nbytes + PAGE - 1, np.uint8)
        except (OverflowError, ValueError) as error:  # more than there are addresses
            raise MemoryError(str(error)) from error
        start = -raw.ctypes.data % PAGE
        return raw[start : start + nbytes]

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """The last view of the bytes gives them back."""


class Watch:
    """How often somebody else's allocator asks a device for memory while nobody should.

    Such requests count as defects of a `Device`. Safe from any thread.
    """

    def __init__(self, name: str, allocations: Callable[[], int]) -> None:
        """name: the device. allocations: how often the allocator has asked so far."""
        self._name = name
        self._allocations = allocations
        self._before: int | None = None  # until all is warm
        self._told = False

    def begin(self) -> None:
        """All is warm: from now on each counts. Safe to call twice."""
        if self._before is None:
            self._before = self._allocations()

    def late(self) -> int:
        """How many there were since; the first are logged."""
        late = 0 if self._before is None else self._allocations() - self._before
        if late and not self._told:
            self._told = True
            _log.warning(
                "%s: torch's allocator asked for memory %d time(s) while serving, where all sizes "
                "were executed before; more are counted, not logged",
                self._name,
                late,
            )
        return late


class WatchedHost(HostDevice):
    """The host's memory, whose count of defects has those of a watched allocator as well."""

    def __init__(self, name: str, watch: Watch) -> None:
        """name: the device that batches and answers go to, and whose allocator is watched."""
        super().__init__(name)
        self._watch = watch

    def freeze(self) -> None:
        self._watch.begin()
        super().freeze()

    @property
    def allocations_after_freeze(self) -> int:
        return super().allocations_after_freeze + self._watch.late()
