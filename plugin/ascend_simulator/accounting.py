"""What an allocation costs of a device's memory: arithmetic only.

A device gives pages; what a caller asks for is first rounded to 32 bytes, and 32 more are taken
for operators that read beyond the end.
"""

from __future__ import annotations

from typing import Final

from ascend_simulator.enumerations import MallocPolicy, MemType

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
