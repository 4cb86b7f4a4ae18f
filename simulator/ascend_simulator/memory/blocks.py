"""Blocks of memory, host memory as arrays, and the device bytes that an allocation occupies."""

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
"""The kind of a block.

- imported: device memory of another process.
- registered: pinned memory that the program allocated itself.
- mapped: memory that the program allocated itself, not pinned.
- alias: registered or mapped memory at the address that the device uses.
"""

ON_A_DEVICE: Final[tuple[Kind, ...]] = ("device", "imported")
"""The kinds of device memory."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

ALIGNMENT: Final = 64
"""Every address is a multiple of this; device addresses have no larger power of two."""

NORMAL_PAGE: Final = 4 * KIB
HUGE_PAGE: Final = 2 * MIB
HUGE1G_PAGE: Final = GIB

_BAND_WIDTHS: Final = int(
    MemType.ACL_MEM_TYPE_LOW_BAND_WIDTH | MemType.ACL_MEM_TYPE_HIGH_BAND_WIDTH
)
_TAIL: Final = 32

FRESH: Final = 0x7F
"""The fill byte of undefined memory, chosen so that a read is noticed.

It is huge as float32 and as integers, and NaN as float16.
"""


class Lease(Protocol):
    """Another process's share of a block."""

    @property
    def is_kept(self) -> bool:
        """True if the memory still exists."""

    def close(self) -> None:
        """Release the share: this process has freed the block."""


class Block:
    """`size` bytes of memory from `start`; `content` is their bytes, [size] uint8."""

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
        """Host address of the first byte, for memmove inside the simulator."""
        self.kind = kind
        self.device = device
        """None for host memory."""
        self.charged = charged
        self.uses = Uses()
        self.writes = 0
        """The number of writes so far: with equal counts the content is unchanged."""
        self.holders: Counter[str] = Counter()
        self.alias: Block | None = None
        self.lease: Lease | None = None

    @property
    def end(self) -> int:
        """The address after the last byte."""
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
        """The host address of the bytes."""
        return self.block.real + self.ptr - self.block.start

    @property
    def content(self) -> Bytes:
        """The bytes, [nbytes] uint8, writable."""
        offset = self.ptr - self.block.start
        return self.block.content[offset : offset + self.nbytes]

    @property
    def range(self) -> Range:
        """The range in the form of a task."""
        return self.ptr, self.nbytes


def host_view(ptr: int, nbytes: int) -> Bytes:
    """Return a view of host memory, [nbytes] uint8, which does not keep it alive."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(ptr))


def aligned(nbytes: int) -> Bytes:
    """Return `nbytes` new bytes of host memory, aligned to ALIGNMENT. Raises MemoryError."""
    if nbytes > sys.maxsize - ALIGNMENT:  # NumPy would raise ValueError
        raise MemoryError
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + nbytes]


# -- device bytes of an allocation ---------------------------------------------------------------


def round_up(nbytes: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `nbytes`."""
    return -(-nbytes // multiple) * multiple


def page_bytes(nbytes: int, policy: int) -> int:
    """Return the page size of an allocation of `nbytes` with `policy`."""
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
    # CANN treats unknown policies like this too.
    return HUGE_PAGE if nbytes >= 2 * MIB else NORMAL_PAGE


def slice_bytes(nbytes: int) -> int:
    """Return the bytes that a part of a block occupies if operators use it."""
    return round_up(nbytes, 32) + _TAIL


def charged_bytes(nbytes: int, policy: int, *, tail: bool = True) -> int:
    """Return the device bytes that an allocation of `nbytes` (1 or more) occupies.

    With `tail` 32 bytes are added; malloc_align32 and pages of 1 GiB have no tail.
    """
    page = page_bytes(nbytes, policy)
    extra = _TAIL if tail and page != HUGE1G_PAGE else 0
    return round_up(round_up(nbytes, 32) + extra, page)
