"""Memory, given and taken back: device memory, which the host cannot reach, and pinned memory.

A device address is one that no host mapping has, so that reading it on the host faults at once; the
bytes behind it lie elsewhere and are reached by `resolve` alone. Its addresses are never given
twice, so a use after free is always found. Pinned memory is real host memory between red zones,
and held back for a while when it was freed. Safe from any thread.
"""

from __future__ import annotations

from collections import Counter
from threading import RLock
from typing import Final

from ascend_simulator import resources
from ascend_simulator.codes import Code, Refused
from ascend_simulator.memory.addresses import DEVICE_FOR_HOST, LOWEST, Addresses
from ascend_simulator.memory.blocks import (
    ALIGNMENT,
    FRESH,
    NORMAL_PAGE,
    Block,
    Bytes,
    Lease,
    aligned,
    charged_bytes,
    host_view,
    round_up,
)
from ascend_simulator.violations import declare, violate

DEVICE_BASE: Final = 0x00DE_0000_0000_0000
"""Device memory lies from here on. Bit 55 keeps it out of user mappings on arm64 and x86-64."""

DEVICE_SPAN: Final = 1 << 46
"""Addresses of one device, enough never to give one twice."""

_RED: Final = 0xFD
_RED_BYTES: Final = 64

BAD_FREE = declare("memory.bad-free", "free gets what malloc gave, unchanged, and gets it once.")
BAD_FREE_HOST = declare(
    "memory.bad-free-host", "free_host gets what malloc_host gave, and gets it once."
)
HELD = declare(
    "memory.free-while-held",
    "Memory goes after the unload of the models, and the close of the key, that need it.",
)
RED_ZONE = declare("memory.red-zone", "Nothing writes before or behind a block of pinned memory.")
TWICE = declare("memory.registered-twice", "Host memory is registered once, and not while pinned.")
BAD_UNREGISTER = declare("memory.bad-unregister", "host_unregister gets what was registered.")
UNALIGNED = declare(
    "memory.registered-unaligned", "Memory that is registered begins at a page of 4 KiB."
)


class AddressSpace(Addresses):
    """All blocks of the process, on all devices and pinned, and how much of each device is used."""

    def __init__(self, capacities: list[int], lock: RLock) -> None:
        """capacities: bytes of each device."""
        super().__init__(lock)
        self._next = [DEVICE_BASE + device * DEVICE_SPAN for device in range(len(capacities))]
        self._capacities = list(capacities)
        self._used = [0] * len(capacities)
        self._taken = [0] * len(capacities)

    # -- allocation -------------------------------------------------------------------------------

    def malloc(self, device: int, nbytes: int, policy: int, *, tail: bool = True) -> int:
        """Address of `nbytes` new bytes of `device`; their content is FRESH.

        Raises Refused: INVALID_PARAM for 0 bytes, RT_MEMORY_ALLOCATION where the device has not as
        many left; MemoryError where the host has not, that simulates it.
        """
        if nbytes == 0:
            raise Refused(Code.INVALID_PARAM, "malloc: size: found 0, expected 1 or more")
        charged = charged_bytes(nbytes, policy, tail=tail)
        with self._lock:
            free, total = self.free_and_total(device)
            if charged > free:
                raise Refused(
                    Code.RT_MEMORY_ALLOCATION,
                    f"malloc: size {nbytes:,} takes {charged:,} bytes of device {device}: found "
                    f"{free:,} of {total:,} free",
                )
            self._used[device] += charged
            start = self._place(device, nbytes)
        # Not under the lock: other threads need not wait until it is filled.
        try:
            content = aligned(nbytes)
        except MemoryError:
            with self._lock:
                self._used[device] -= charged
            raise
        content.fill(FRESH)
        self._insert(Block(start, content, "device", device, charged))
        return start

    def free(self, ptr: int) -> None:
        """Give device memory back, at once. Violates BAD_FREE and HELD.

        Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for what is no block's start.
        """
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, "free: found a null pointer")
        with self._lock:
            block = self._start_of(ptr, ("device",), BAD_FREE, "free")
            self.check_free(block, "free")
            self._remove(block)

    def malloc_host(self, nbytes: int) -> int:
        """Address of `nbytes` new bytes of pinned host memory; their content is FRESH.

        Raises Refused: INVALID_PARAM for 0 bytes, BAD_ALLOC where the host has not as many.
        """
        if nbytes == 0:
            raise Refused(Code.INVALID_PARAM, "malloc_host: size: found 0, expected 1 or more")
        try:
            whole = aligned(nbytes + 2 * _RED_BYTES)
        except MemoryError as error:
            raise Refused(
                Code.BAD_ALLOC, f"malloc_host: found less than {nbytes:,} bytes on the host"
            ) from error
        whole.fill(_RED)
        content = whole[_RED_BYTES : _RED_BYTES + nbytes]
        content.fill(FRESH)
        block = Block(content.ctypes.data, content, "pinned", None, 0)
        self._insert(block)
        return block.start

    def free_host(self, ptr: int) -> None:
        """Give pinned memory back, at once. Violates BAD_FREE_HOST, RED_ZONE and, of others, FREED.

        Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for what malloc_host did not give.
        """
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, "free_host: found a null pointer")
        with self._lock:
            block = self._start_of(ptr, ("pinned",), BAD_FREE_HOST, "free_host")
            self._remove(block)
            self._freed.add(block)
        self._check_red_zones(block)

    def register(self, ptr: int, nbytes: int, device: int, *, pins: bool, maps: bool) -> int:
        """Existing host memory is pinned from now on, or mapped: reached by the device, or both.

        Its address for `device`, 0 where it is not mapped. The caller keeps it mapped until
        `unregister`. Violates TWICE and UNALIGNED. Raises Refused: INVALID_PARAM for null and 0
        bytes, RT_PARAM_INVALID for what is registered, pinned, on a device or unaligned.
        """
        if ptr == 0 or nbytes == 0:
            raise Refused(Code.INVALID_PARAM, f"host_register: found {nbytes} bytes at {ptr:#x}")
        if ptr < LOWEST or ptr + nbytes > resources.BASE:
            found = f"{nbytes:,} bytes at {ptr:#x}: found no host memory"
            self._refuse(DEVICE_FOR_HOST, f"host_register: {found}")
        with self._lock:
            other = self._map.overlapping(ptr, nbytes)
            if other is not None:
                self._refuse(
                    TWICE, f"host_register: {nbytes:,} bytes at {ptr:#x}: found {other!r} there"
                )
            if ptr % NORMAL_PAGE:
                past = f"found {ptr % NORMAL_PAGE} bytes past a multiple of {NORMAL_PAGE}"
                self._refuse(UNALIGNED, f"host_register: {ptr:#x}: {past}")
            content = host_view(ptr, nbytes)
            block = Block(ptr, content, "registered" if pins else "mapped", None, 0)
            self._insert(block)
            if not maps:
                return 0
            block.alias = Block(self._place(device, nbytes), content, "alias", device, 0)
            self._insert(block.alias)
        return block.alias.start

    def unregister(self, ptr: int) -> None:
        """Registered memory is ordinary host memory again. Violates BAD_UNREGISTER.

        Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for what was not registered.
        """
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, "host_unregister: found a null pointer")
        with self._lock:
            block = self._start_of(ptr, ("registered", "mapped"), BAD_UNREGISTER, "host_unregister")
            self._remove(block)
            if block.alias is not None:
                self._remove(block.alias)

    # -- sharing ----------------------------------------------------------------------------------

    def move(self, block: Block, content: Bytes, lease: Lease) -> None:
        """The block's bytes lie elsewhere from now on, as others have them, too.

        The caller copied them there; nobody uses the block meanwhile, and `ptr` stays what it is.
        """
        block.content, block.real, block.lease = content, content.ctypes.data, lease

    def adopt(self, device: int, content: Bytes, lease: Lease) -> Block:
        """Memory of another process is a block here, too, and is not charged."""
        with self._lock:
            start = self._place(device, content.nbytes)
            block = Block(start, content, "imported", device, 0)
            block.lease = lease
            self._insert(block)
        return block

    # -- holding -----------------------------------------------------------------------------------

    def hold(self, ptr: int, nbytes: int, holder: str) -> Block:
        """Mark the device block of these bytes as in use by `holder`, e.g. "model 3 (weights)".

        Freeing it is then a violation, until `release`. Raises as `locate` does.
        """
        block = self.locate(ptr, nbytes, want="device", what=holder)
        assert block is not None  # only pageable memory has none
        with self._lock:
            block.holders[holder] += 1
        return block

    def check_free(self, block: Block, what: str) -> None:
        """The block is about to go. Violates HELD."""
        if block.holders:
            violate(HELD, f"{what}: {block!r}: found in use by {', '.join(sorted(block.holders))}")

    def release(self, block: Block, holder: str) -> None:
        """Undo one `hold`."""
        with self._lock:
            block.holders[holder] -= 1
            block.holders += Counter()  # drops what is zero

    # -- how much is used -------------------------------------------------------------------------

    def free_and_total(self, device: int) -> tuple[int, int]:
        """Free bytes and all bytes of `device`; other processes count as used."""
        total = self._capacities[device]
        return max(0, total - self._used[device] - self._taken[device]), total

    def used(self, device: int) -> int:
        """Bytes of `device` that living blocks take, rounding included."""
        return self._used[device]

    def take(self, device: int, nbytes: int) -> None:
        """Let other processes hold `nbytes` of `device`, instead of what they held before."""
        with self._lock:
            self._taken[device] = nbytes

    def check_host_writes(self) -> None:
        """Violates RED_ZONE where pinned memory was overrun, FREED where it was written later."""
        with self._lock:
            self._freed.clear()
        for block in self.blocks("pinned"):
            self._check_red_zones(block)

    def discard(self, block: Block) -> None:
        """Forget a block as a device that is reset does: no rule applies."""
        with self._lock:
            self._remove(block)

    def __repr__(self) -> str:
        devices = ", ".join(
            f"device {device}: {used:,} of {self._capacities[device]:,}"
            for device, used in enumerate(self._used)
        )
        return f"<AddressSpace: {len(self._map.all())} block(s); {devices}>"

    # -- inside -----------------------------------------------------------------------------------

    def _place(self, device: int, nbytes: int) -> int:
        # One alignment unit past a page: a multiple of 64 and of nothing larger.
        start = self._next[device] + ALIGNMENT
        self._next[device] += round_up(nbytes + 2 * ALIGNMENT, NORMAL_PAGE)
        return start

    def _insert(self, block: Block) -> None:
        with self._lock:
            self._map.add(block)

    def _remove(self, block: Block) -> None:
        self._map.remove(block)
        if block.lease is not None:
            block.lease.close()
        if block.device is not None:
            self._used[block.device] -= block.charged

    def _check_red_zones(self, block: Block) -> None:
        whole = host_view(block.start - _RED_BYTES, block.size + 2 * _RED_BYTES)
        for side, zone in (("before", whole[:_RED_BYTES]), ("behind", whole[-_RED_BYTES:])):
            if (zone != _RED).any():
                violate(RED_ZONE, f"{block!r}: found bytes written {side} it")
