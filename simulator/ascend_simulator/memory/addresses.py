"""Blocks by address: the checks of an address, the map of living blocks, those freed last.

Any host address that no block has counts as pageable: nothing is known of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from threading import RLock
from typing import Final, Literal, NoReturn, TypeAlias

from ascend_simulator import resources
from ascend_simulator.codes import Code, Refused
from ascend_simulator.memory.blocks import (
    FRESH,
    ON_A_DEVICE,
    Block,
    Bytes,
    Kind,
    host_view,
)
from ascend_simulator.violations import declare, violate

Want: TypeAlias = Literal["device", "host", "any"]

LOWEST: Final = 0x10000
"""Below it no program has memory."""

_REMEMBERED: Final = 4096  # blocks that are gone, for messages

# How much freed pinned memory is held back: enough to meet a late user, little enough for a laptop.
_KEPT_BYTES: Final = 64 * 1024 * 1024
_KEPT: Final = 1024

FREED = declare("memory.use-after-free", "Memory is not used after it was freed.")
UNKNOWN = declare(
    "memory.unknown", "An address lies in memory that was allocated or that the host owns."
)
BEYOND = declare("memory.beyond-block", "A range lies wholly within one block of memory.")
DEVICE_FOR_HOST = declare(
    "memory.device-for-host", "A device address is not used as a host address."
)
HOST_FOR_DEVICE = declare(
    "memory.host-for-device", "A host address is not used as a device address."
)
GONE = declare(
    "ipc.exporter-gone", "Imported memory is used while its exporter lives and has not closed it."
)


class Addresses:
    """Living blocks, and those of pinned memory that were freed. Safe from any thread."""

    def __init__(self, lock: RLock) -> None:
        self._lock = lock
        self._map = BlockMap()
        self._freed = Quarantine()
        self.find = self._map.find
        """The living block that holds the byte at an address, None if there is none."""

    def blocks(self, kind: Kind | None = None) -> list[Block]:
        """The living blocks, of one kind or all, by address."""
        return [block for block in self._map.all() if kind in (None, block.kind)]

    def locate(self, ptr: int, nbytes: int, *, want: Want, what: str = "memory") -> Block | None:
        """The block that holds `nbytes` (0 or more) from `ptr`; None for pageable host memory.

        what: begins the message. Violates FREED, UNKNOWN, BEYOND, GONE, DEVICE_FOR_HOST,
        HOST_FOR_DEVICE.
        Raises Refused RT_PARAM_INVALID after a violation that lenient mode lets pass, and
        INVALID_PARAM for null.
        """
        block = self.find(ptr)
        if block is None:
            if not LOWEST <= ptr < resources.BASE:
                self._refuse_stray(ptr, what)
            if want == "device":
                self._refuse(HOST_FOR_DEVICE, f"{what}: {ptr:#x}: found host memory")
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
            if block.kind not in ON_A_DEVICE:  # the alias of host memory is that all the same
                self._refuse(HOST_FOR_DEVICE, f"{what}: {ptr:#x}: found {block!r}")
        elif want == "host" and block.device is not None:
            self._refuse(DEVICE_FOR_HOST, f"{what}: {ptr:#x}: found {block!r}")
        return block

    def resolve(
        self, ptr: int, nbytes: int, *, want: Want, write: bool, what: str = "memory"
    ) -> Bytes:
        """The bytes themselves: a view, [nbytes] uint8, read-only unless `write`.

        Raises as `locate` does.
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

    # -- for what gives and takes memory ----------------------------------------------------------

    def _start_of(self, ptr: int, kinds: tuple[Kind, ...], rule: str, what: str) -> Block:
        block = self.find(ptr)
        if block is None:
            found = self._map.history(ptr) or "nothing that was allocated"
            self._refuse(rule, f"{what}: {ptr:#x}: found {found}")
        if block.kind not in kinds:
            self._refuse(rule, f"{what}: {ptr:#x}: found {block!r}")
        if block.start != ptr:
            self._refuse(rule, f"{what}: {ptr:#x}: found byte {ptr - block.start:,} of {block!r}")
        return block

    def _check_pageable(self, ptr: int, nbytes: int, what: str) -> None:
        """No block is at `ptr`, and none must be behind it. Violates BEYOND."""
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
        self._refuse(UNKNOWN, f"{what}: {ptr:#x}: found nothing that was allocated")

    def _refuse(self, rule: str, text: str) -> NoReturn:
        violate(rule, text)
        raise Refused(Code.RT_PARAM_INVALID, text)


class BlockMap:
    """Blocks by address, none overlapping.

    Its lists are replaced, never changed, so that `find` needs no lock. Callers that change it hold
    one.
    """

    def __init__(self) -> None:
        self._map: tuple[list[int], list[Block]] = ([], [])  # starts and blocks, in order
        self._gone: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def find(self, ptr: int) -> Block | None:
        """The block that holds the byte at `ptr`."""
        starts, blocks = self._map
        place = bisect_right(starts, ptr)
        if place:
            block = blocks[place - 1]
            if ptr < block.start + block.size:
                return block
        return None

    def overlapping(self, ptr: int, nbytes: int) -> Block | None:
        """A block that holds one of `nbytes` (1 or more) bytes from `ptr`."""
        starts, blocks = self._map
        place = bisect_right(starts, ptr + nbytes - 1)
        if place and blocks[place - 1].end > ptr:
            return blocks[place - 1]
        return None

    def add(self, block: Block) -> None:
        """`block` is there from now on; it overlaps none."""
        starts, blocks = self._map
        place = bisect_right(starts, block.start)
        self._map = (
            [*starts[:place], block.start, *starts[place:]],
            [*blocks[:place], block, *blocks[place:]],
        )

    def remove(self, block: Block) -> None:
        """`block` is gone, and remembered for a while."""
        starts, blocks = self._map
        place = bisect_right(starts, block.start) - 1
        self._map = (
            [*starts[:place], *starts[place + 1 :]],
            [*blocks[:place], *blocks[place + 1 :]],
        )
        self._gone.append((block.start, block.size))

    def history(self, ptr: int) -> str:
        """What was at `ptr`, in words; '' if nothing is remembered."""
        for start, size in reversed(self._gone):
            if start <= ptr < start + size:
                return f"{size:,} bytes from {start:#x} that were freed"
        return ""

    def all(self) -> list[Block]:
        """The blocks by address."""
        return list(self._map[1])


class Quarantine:
    """The last freed blocks of pinned memory. Callers hold the process's lock.

    Device memory needs none: its addresses are never given twice.
    """

    def __init__(self) -> None:
        self._blocks: deque[Block] = deque()
        self._nbytes = 0

    def add(self, block: Block) -> None:
        """`block` was freed. Violates FREED where one that has to make room was written."""
        block.content.fill(FRESH)
        self._blocks.append(block)
        self._nbytes += block.size
        while self._nbytes > _KEPT_BYTES or len(self._blocks) > _KEPT:
            self._drop()

    def find(self, ptr: int) -> Block | None:
        """The freed block that held the byte at `ptr`."""
        for block in self._blocks:
            if block.start <= ptr < block.end:
                return block
        return None

    def clear(self) -> None:
        """Keep nothing any longer. Violates FREED where something was written."""
        while self._blocks:
            self._drop()

    def _drop(self) -> None:
        block = self._blocks.popleft()
        self._nbytes -= block.size
        if (block.content != FRESH).any():
            violate(FREED, f"{block!r}: found bytes that the host wrote after it was freed")
