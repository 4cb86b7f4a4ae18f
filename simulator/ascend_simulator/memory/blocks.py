"""Blocks of memory, host memory as arrays, and the bytes that an allocation takes of a device."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.enumerations import MallocPolicy, MemType
from ascend_simulator.memory.ordering import Range, Uses

Bytes: TypeAlias = NDArray[np.uint8]
Kind: TypeAlias = Literal["device", "imported", "pinned", "registered", "mapped", "alias"]
"""imported: device memory of another process. registered: of the program, and pinned. mapped: the
same, not pinned. alias: either, at the address under which the device reaches it."""

ON_A_DEVICE: Final[tuple[Kind, ...]] = ("device", "imported")
"""The kinds that are memory of a device."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

ALIGNMENT: Final = 64
"""Every address is a multiple of it, on a device of no larger power of two."""

NORMAL_PAGE: Final = 4 * KIB
HUGE_PAGE: Final = 2 * MIB
HUGE1G_PAGE: Final = GIB

_BAND_WIDTHS: Final = int(
    MemType.ACL_MEM_TYPE_LOW_BAND_WIDTH | MemType.ACL_MEM_TYPE_HIGH_BAND_WIDTH
)
_TAIL: Final = 32

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


# -- what an allocation takes --------------------------------------------------------------------


def round_up(nbytes: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `nbytes`."""
    return -(-nbytes // multiple) * multiple


def page_bytes(nbytes: int, policy: int) -> int:
    """The page size that an allocation of `nbytes` under `policy` is made of."""
    pages = policy & ~_BAND_WIDTHS
    if pages in (
        MallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST,
        MallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST_P2P,
    ):
        return HUGE_PAGE if nbytes > MIB else NORMAL_PAGE
    if pages in (MallocPolicy.ACL_MEM_MALLOC_HUGE_ONLY, MallocPolicy.ACL_MEM_MALLOC_HUGE_ONLY_P2P):
        return HUGE_PAGE
    if pages in (
        MallocPolicy.ACL_MEM_MALLOC_NORMAL_ONLY,
        MallocPolicy.ACL_MEM_MALLOC_NORMAL_ONLY_P2P,
    ):
        return NORMAL_PAGE
    if pages in (
        MallocPolicy.ACL_MEM_MALLOC_HUGE1G_ONLY,
        MallocPolicy.ACL_MEM_MALLOC_HUGE1G_ONLY_P2P,
    ):
        return HUGE1G_PAGE
    return HUGE_PAGE if nbytes >= 2 * MIB else NORMAL_PAGE  # as CANN does with unknown numbers


def slice_bytes(nbytes: int) -> int:
    """What a part of a block takes that operators use."""
    return round_up(nbytes, 32) + _TAIL


def charged_bytes(nbytes: int, policy: int, *, tail: bool = True) -> int:
    """What an allocation of `nbytes` (1 or more) takes of the device.

    tail: whether 32 bytes are added, which malloc_align32 and pages of 1 GiB do not.
    """
    page = page_bytes(nbytes, policy)
    extra = _TAIL if tail and page != HUGE1G_PAGE else 0
    return round_up(round_up(nbytes, 32) + extra, page)
