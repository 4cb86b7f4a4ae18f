"""Host memory whose address acl.util returned: checks that its Python object still exists.

The latest objects are kept, so that their memory cannot be reused. An object with no other
reference was dropped by its owner, who should have kept it.
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
    "util.owner-dropped", "An array or bytes object must exist as long as its address is used."
)

WRITTEN = declare("util.bytes-written", "Do not write through the address of a bytes object.")

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
"""References to an owner that only its loan refers to; depends on the Python version."""


class Borrowed:
    """The last loans of the process: a `Part` of it. Safe from any thread."""

    def __init__(self) -> None:
        self._loans: deque[_Loan] = deque(maxlen=_KEPT)

    def lend(self, owner: bytes, first: int) -> None:
        """Record that the address of `owner`'s bytes was returned. Ignores large objects."""
        self._lend(owner, first, len(owner), first + len(owner))

    def lend_array(self, array: NDArray[Any]) -> None:
        """Record an array as `lend` does, or the array that it is a view of; not foreign memory."""
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
        """Check an access to pageable memory at `ptr`. Violates DROPPED, WRITTEN and BEYOND."""
        for loan in reversed(self._loans):
            if loan.first <= ptr < loan.end:
                if write and isinstance(loan.owner, bytes):
                    violate(WRITTEN, f"{what}: {ptr:#x}: the target is an immutable bytes object")
                if loan.references == _ALONE:
                    violate(DROPPED, f"{what}: {ptr:#x}: its owner was deleted")
                elif ptr + nbytes > loan.limit:
                    found = f"{ptr + nbytes - loan.limit:,} bytes beyond the end of its owner"
                    violate(BEYOND, f"{what}: {nbytes:,} bytes at {ptr:#x}: {found}")
                return

    def live(self) -> list[str]:
        """Return nothing: loans need no release."""
        return []

    def close(self) -> None:
        """Forget all loans."""
        self._loans.clear()
