"""A block of memory, and host memory as arrays."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.accounting import ALIGNMENT
from ascend_simulator.ordering import Range, Uses

Bytes: TypeAlias = NDArray[np.uint8]
Kind: TypeAlias = Literal["device", "imported", "pinned", "registered", "mapped", "alias"]
"""imported: device memory of another process. registered: of the program, and pinned. mapped: the
same, not pinned. alias: either, at the address under which the device reaches it."""

ON_A_DEVICE: Final[tuple[Kind, ...]] = ("device", "imported")
"""The kinds that are memory of a device."""

FRESH: Final = 0x7F
"""Fills memory whose content is undefined: huge as float32 and as integers, not a number as
float16, so that reading it shows."""


class Lease(Protocol):
    """What another process has of a block, too."""

    @property
    def is_kept(self) -> bool:
        """Whether the memory is still there."""

    def close(self) -> None:
        """The block is gone here."""


class Block:
    """Memory from `start`, `size` bytes of it; `content` are its bytes, [size] uint8."""

    __slots__ = (
        "alias",
        "charged",
        "content",
        "device",
        "holders",
        "kind",
        "lease",
        "real",
        "size",
        "start",
        "uses",
        "writes",
    )

    def __init__(
        self, start: int, content: Bytes, kind: Kind, device: int | None, charged: int
    ) -> None:
        self.start = start
        self.size = content.nbytes
        self.content = content
        self.real = content.ctypes.data
        """Host address of the first byte: for memmove inside the simulator."""
        self.kind = kind
        self.device = device
        """None for host memory."""
        self.charged = charged
        self.uses = Uses()
        self.writes = 0
        """How often somebody was about to write into it: at equal counts it is unchanged."""
        self.holders: Counter[str] = Counter()
        self.alias: Block | None = None
        self.lease: Lease | None = None

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.size

    def __repr__(self) -> str:
        where = "host" if self.device is None else f"device {self.device}"
        return f"<{self.kind} {self.start:#x}, {self.size:,} bytes, {where}>"


@dataclass(frozen=True)
class Place:
    """Bytes `ptr` up to `ptr + nbytes` of a device, all within `block`."""

    ptr: int
    nbytes: int
    block: Block

    @property
    def address(self) -> int:
        """Where the host has them."""
        return self.block.real + self.ptr - self.block.start

    @property
    def content(self) -> Bytes:
        """The bytes, [nbytes] uint8, writable."""
        offset = self.ptr - self.block.start
        return self.block.content[offset : offset + self.nbytes]

    @property
    def range(self) -> Range:
        """As a task wants it."""
        return self.ptr, self.nbytes


def host_view(ptr: int, nbytes: int) -> Bytes:
    """`nbytes` bytes of host memory at `ptr`: a view, [nbytes] uint8, that keeps nothing alive."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(ptr))


def aligned(nbytes: int) -> Bytes:
    """`nbytes` new bytes of host memory at a multiple of ALIGNMENT. Raises MemoryError."""
    if nbytes > sys.maxsize - ALIGNMENT:  # NumPy raises ValueError there
        raise MemoryError
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + nbytes]
