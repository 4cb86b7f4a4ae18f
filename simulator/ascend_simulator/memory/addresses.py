"""Blocks by address: address checks, the map of allocated blocks, and the latest freed blocks.

A host address outside all blocks is pageable memory. If acl.util returned the address, the Python
object with the memory must still exist; otherwise pageable memory is not checked.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from threading import RLock
from typing import Any, Final, Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ascend_simulator import resources
from ascend_simulator.codes import Code, Refused
from ascend_simulator.memory.blocks import FRESH, ON_A_DEVICE, Block, Bytes, Kind, host_view
from ascend_simulator.violations import declare, violate

Want: TypeAlias = Literal["device", "host", "any"]

LOWEST: Final = 0x10000
"""The lowest address at which a program can have memory."""

_REMEMBERED: Final = 4096  # freed blocks, for messages

# Limits of quarantined pinned memory: large enough to find late uses, small enough for a laptop.
_KEPT_BYTES: Final = 64 * 1024 * 1024
_KEPT: Final = 1024

FREED = declare("memory.use-after-free", "Memory must not be used after it is freed.")
UNKNOWN = declare(
    "memory.unknown", "An address must be in allocated memory or in the host's memory."
)
BEYOND = declare("memory.beyond-block", "A range must be within one block of memory.")
DEVICE_FOR_HOST = declare(
    "memory.device-for-host", "A device address must not be used as a host address."
)
HOST_FOR_DEVICE = declare(
    "memory.host-for-device", "A host address must not be used as a device address."
)
GONE = declare(
    "ipc.exporter-gone",
    "Imported memory must not be used after its exporter has closed it or ended.",
)


class Addresses:
    """Allocated blocks, and freed blocks of pinned memory. Safe from any thread."""

    def __init__(self, lock: RLock, *, one: bool = False) -> None:
        self.one_memory: Final = one
        """True if host and device share one memory: each address is valid for both."""
        self._lock = lock
        self._map = BlockMap()
        self._freed = Quarantine()
        self.find = self._map.find
        """The allocated block that contains an address, or None."""

    def blocks(self, kind: Kind | None = None) -> list[Block]:
        """Return the allocated blocks of a kind (None: of all kinds), sorted by address."""
        return [block for block in self._map.all() if kind in (None, block.kind)]

    def locate(self, ptr: int, nbytes: int, *, want: Want, what: str = "memory") -> Block | None:
        """Return the block with `nbytes` (0 or more) from `ptr`; None for pageable host memory.

        `what` begins the message. Checks FREED, UNKNOWN, BEYOND, GONE, DEVICE_FOR_HOST,
        HOST_FOR_DEVICE. Raises Refused RT_PARAM_INVALID after a violation in lenient mode, and
        INVALID_PARAM for null.
        """
        block = self.find(ptr)
        if block is None:
            if not LOWEST <= ptr < resources.BASE:
                self._refuse_stray(ptr, what)
            if want == "device":
                self._refuse(
                    HOST_FOR_DEVICE, f"{what}: {ptr:#x}: found host memory, expected device memory"
                )
            with self._lock:
                gone = self._freed.find(ptr)
            if gone is not None:
                self._refuse(FREED, f"{what}: {ptr:#x}: found {gone!r}, which was freed")
            self._check_pageable(ptr, nbytes, what)
            return None
        if ptr + nbytes > block.start + block.size:
            self._refuse(
                BEYOND,
                f"{what}: {nbytes:,} bytes at {ptr:#x}, byte {ptr - block.start:,} of {block!r}: "
                f"found {ptr + nbytes - block.end:,} beyond its end",
            )
        if block.lease is not None and not block.lease.is_kept:
            self._refuse(GONE, f"{what}: {ptr:#x}: found {block!r}, whose exporter has closed it")
        if want == "device":
            shared = self.one_memory and block.kind == "pinned"
            # An alias of host memory is also host memory.
            if block.kind not in ON_A_DEVICE and not shared:
                self._refuse(
                    HOST_FOR_DEVICE, f"{what}: {ptr:#x}: found {block!r}, expected device memory"
                )
        elif want == "host" and block.device is not None and not self.one_memory:
            self._refuse(
                DEVICE_FOR_HOST, f"{what}: {ptr:#x}: found {block!r}, expected host memory"
            )
        return block

    def resolve(
        self, ptr: int, nbytes: int, *, want: Want, write: bool, what: str = "memory"
    ) -> Bytes:
        """Return a view of the bytes, [nbytes] uint8, read-only unless `write`.

        Raises like `locate`.
        """
        block = self.locate(ptr, nbytes, want=want, what=what)
        if block is None:
            view = host_view(ptr, nbytes)
        else:
            offset = ptr - block.start
            view = block.content[offset : offset + nbytes]
            block.writes += write
        if not write:
            view.flags.writeable = False
        return view

    # -- helpers of subclasses --------------------------------------------------------------------

    def _start_of(self, ptr: int, kinds: tuple[Kind, ...], rule: str, what: str) -> Block:
        block = self.find(ptr)
        if block is None:
            found = self._map.history(ptr) or "no allocated memory"
            self._refuse(rule, f"{what}: {ptr:#x}: found {found}")
        if block.kind not in kinds:
            self._refuse(rule, f"{what}: {ptr:#x}: found {block!r}")
        if block.start != ptr:
            self._refuse(rule, f"{what}: {ptr:#x}: found byte {ptr - block.start:,} of {block!r}")
        return block

    def _check_pageable(self, ptr: int, nbytes: int, what: str) -> None:
        """Check BEYOND: no block may overlap a range of pageable memory."""
        block = self._map.overlapping(ptr, nbytes)
        if block is not None or ptr + nbytes > resources.BASE:
            found = "the end of the host's memory" if block is None else repr(block)
            self._refuse(BEYOND, f"{what}: {nbytes:,} bytes at {ptr:#x}: found {found} in them")

    def _refuse_stray(self, ptr: int, what: str) -> NoReturn:
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, f"{what}: found a null pointer")
        history = self._map.history(ptr)
        if history:
            self._refuse(FREED, f"{what}: {ptr:#x}: found {history}")
        self._refuse(UNKNOWN, f"{what}: {ptr:#x}: found no allocated memory")

    def _refuse(self, rule: str, text: str) -> NoReturn:
        violate(rule, text)
        raise Refused(Code.RT_PARAM_INVALID, text)


class BlockMap:
    """Non-overlapping blocks by address.

    The map's lists are replaced and never modified, so that `find` needs no lock. Callers of other
    methods hold a lock.
    """

    def __init__(self) -> None:
        self._map: tuple[list[int], list[Block]] = ([], [])  # starts and blocks, in order
        self._gone: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def find(self, ptr: int) -> Block | None:
        """Return the block that contains the byte at `ptr`."""
        starts, blocks = self._map
        place = bisect_right(starts, ptr)
        if place:
            block = blocks[place - 1]
            if ptr < block.start + block.size:
                return block
        return None

    def overlapping(self, ptr: int, nbytes: int) -> Block | None:
        """Return a block that contains one of `nbytes` (1 or more) bytes from `ptr`."""
        starts, blocks = self._map
        place = bisect_right(starts, ptr + nbytes - 1)
        if place and blocks[place - 1].end > ptr:
            return blocks[place - 1]
        return None

    def add(self, block: Block) -> None:
        """Add a block that overlaps no other block."""
        starts, blocks = self._map
        place = bisect_right(starts, block.start)
        self._map = (
            [*starts[:place], block.start, *starts[place:]],
            [*blocks[:place], block, *blocks[place:]],
        )

    def remove(self, block: Block) -> None:
        """Remove a block and remember it for messages."""
        starts, blocks = self._map
        place = bisect_right(starts, block.start) - 1
        self._map = (
            [*starts[:place], *starts[place + 1 :]],
            [*blocks[:place], *blocks[place + 1 :]],
        )
        self._gone.append((block.start, block.size))

    def history(self, ptr: int) -> str:
        """Describe the freed block that was at `ptr`; '' if none is remembered."""
        for start, size in reversed(self._gone):
            if start <= ptr < start + size:
                return f"{size:,} bytes from {start:#x} that were freed"
        return ""

    def all(self) -> list[Block]:
        """Return the blocks, sorted by address."""
        return list(self._map[1])


class Quarantine:
    """The latest freed blocks of pinned memory. Callers hold the process's lock.

    Device memory needs no quarantine, because device addresses are never reused.
    """

    def __init__(self) -> None:
        self._blocks: deque[Block] = deque()
        self._nbytes = 0

    def add(self, block: Block) -> None:
        """Add a freed block. Checks FREED for evicted blocks."""
        block.content.fill(FRESH)
        self._blocks.append(block)
        self._nbytes += block.size
        while self._nbytes > _KEPT_BYTES or len(self._blocks) > _KEPT:
            self._drop()

    def find(self, ptr: int) -> Block | None:
        """Return the freed block that contained the byte at `ptr`."""
        for block in self._blocks:
            if block.start <= ptr < block.end:
                return block
        return None

    def clear(self) -> None:
        """Evict all blocks. Checks FREED for evicted blocks."""
        while self._blocks:
            self._drop()

    def _drop(self) -> None:
        block = self._blocks.popleft()
        self._nbytes -= block.size
        if (block.content != FRESH).any():
            violate(FREED, f"{block!r}: found bytes that the host wrote after the block was freed")


DROPPED = declare(
    "util.owner-dropped", "An array or bytes object must exist as long as its address is used."
)

WRITTEN = declare("util.bytes-written", "Do not write through the address of a bytes object.")

_LOANS: Final = 64


class _Loan:
    """Host memory from `first` to `end` of a Python object, `owner`; its memory ends at `limit`."""

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
"""Number of references to an owner to which only its loan refers, in this version of Python."""


class Borrowed:
    """The last loans of the process: a `Part`. Safe from any thread."""

    def __init__(self) -> None:
        self._loans: deque[_Loan] = deque(maxlen=_LOANS)

    def lend(self, owner: bytes, first: int) -> None:
        """Record that the address of an object's bytes was returned. Ignores large objects."""
        self._lend(owner, first, len(owner), first + len(owner))

    def lend_array(self, array: NDArray[Any]) -> None:
        """Record an array, or the array that it is a view of, like `lend`; not foreign memory."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner.base is None:
            limit = owner.ctypes.data + owner.nbytes
            self._lend(owner, array.ctypes.data, array.nbytes, limit)

    def _lend(self, owner: object, first: int, nbytes: int, limit: int) -> None:
        if nbytes <= _KEPT_BYTES // _LOANS:
            self._loans.append(_Loan(owner, first, nbytes, limit))

    def check(self, ptr: int, nbytes: int, what: str, *, write: bool = False) -> None:
        """Check DROPPED, WRITTEN and BEYOND for an access to pageable memory at `ptr`."""
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
        """Return no names: loans need no release."""
        return []

    def close(self) -> None:
        """Remove all loans."""
        self._loans.clear()
