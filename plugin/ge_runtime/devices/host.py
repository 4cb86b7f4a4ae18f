"""The memory of this process, as bytes that NumPy holds."""

from __future__ import annotations

import mmap
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices.base import Device

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
