"""Host memory whose address acl.util gave: whether its Python object still lives when it is used.

The last objects are kept, so that their memory cannot become something else meanwhile; one that
nobody else refers to any more was dropped by its owner, who should have kept it.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.memory.addresses import BEYOND
from ascend_simulator.violations import declare, violate

DROPPED = declare(
    "util.owner-dropped", "An array or bytes object lives as long as its address is used."
)

WRITTEN = declare("util.bytes-written", "Nobody writes through the address of a bytes object.")

_KEPT_BYTES: Final = 64 * 1024 * 1024
_KEPT: Final = 64


class _Loan:
    """Bytes `first` up to `end` of host memory, of which `owner` owns those up to `limit`."""

    __slots__ = ("end", "first", "limit", "owner")

    def __init__(self, owner: object, first: int, nbytes: int, limit: int) -> None:
        self.owner = owner
        self.first = first
        self.end = min(first + nbytes, limit)
        self.limit = limit

    @property
    def references(self) -> int:
        return sys.getrefcount(self.owner)


_ALONE: Final = _Loan(object(), 0, 0, 0).references
"""References to an owner that nobody but its loan has: differs between Pythons."""


class Borrowed:
    """The last loans of the process: a `Part` of it. Safe from any thread."""

    def __init__(self) -> None:
        self._loans: deque[_Loan] = deque(maxlen=_KEPT)

    def lend(self, owner: bytes, first: int) -> None:
        """The address of `owner`'s bytes is given away. Large ones are not watched."""
        self._lend(owner, first, len(owner), first + len(owner))

    def lend_array(self, array: NDArray[Any]) -> None:
        """As `lend`, of an array or the one that it is a view of; not of foreign memory."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner.base is None:
            limit = owner.ctypes.data + owner.nbytes
            self._lend(owner, array.ctypes.data, array.nbytes, limit)

    def _lend(self, owner: object, first: int, nbytes: int, limit: int) -> None:
        if nbytes <= _KEPT_BYTES // _KEPT:
            self._loans.append(_Loan(owner, first, nbytes, limit))

    def check(self, ptr: int, nbytes: int, what: str, *, write: bool = False) -> None:
        """Pageable memory at `ptr` is used now. Violates DROPPED, WRITTEN and BEYOND."""
        for loan in reversed(self._loans):
            if loan.first <= ptr < loan.end:
                if write and isinstance(loan.owner, bytes):
                    violate(WRITTEN, f"{what}: {ptr:#x}: found a bytes object as the target")
                if loan.references == _ALONE:
                    violate(DROPPED, f"{what}: {ptr:#x}: found its owner gone")
                elif ptr + nbytes > loan.limit:
                    found = f"found {ptr + nbytes - loan.limit:,} beyond the end of its owner"
                    violate(BEYOND, f"{what}: {nbytes:,} bytes at {ptr:#x}: {found}")
                return

    def live(self) -> list[str]:
        """Nothing here needs a release."""
        return []

    def close(self) -> None:
        """Keep nothing any longer."""
        self._loans.clear()
