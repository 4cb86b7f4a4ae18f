"""Allocation of device memory, which the host cannot access, and of pinned memory.

A device address has no host mapping, so that an access by the host fails immediately; only
`resolve` gives access to the bytes. Device addresses are never reused, so a use after free is
always found. Pinned memory is real host memory between red zones, and is quarantined after it is
freed. Safe from any thread.
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
"""The lowest device address. Bit 55 keeps it out of user mappings on arm64 and x86-64."""

DEVICE_SPAN: Final = 1 << 46
"""The number of addresses of one device, enough that no address is reused."""

_RED: Final = 0xFD
_RED_BYTES: Final = 64
_ODD_BYTES: Final = 16
"""Offset of malloc_host's addresses if host and device share one memory, where CANN documents no
alignment to 64 bytes."""

BAD_FREE = declare(
    "memory.bad-free", "free must receive each address of malloc, unchanged, exactly once."
)
BAD_FREE_HOST = declare(
    "memory.bad-free-host", "free_host must receive each address of malloc_host exactly once."
)
HELD = declare(
    "memory.free-while-held",
    "Unload the models and close the key that use memory before freeing it.",
)
RED_ZONE = declare("memory.red-zone", "Do not write before or after a block of pinned memory.")
TWICE = declare(
    "memory.registered-twice", "Host memory must not be registered twice, nor if it is pinned."
)
BAD_UNREGISTER = declare("memory.bad-unregister", "host_unregister needs a registered address.")
UNALIGNED = declare(
    "memory.registered-unaligned", "Registered memory must begin at a page of 4 KiB."
)


class AddressSpace(Addresses):
    """All blocks of the process, on devices and pinned, and each device's used bytes."""

    def __init__(self, capacities: list[int], lock: RLock, *, one: bool = False) -> None:
        """Make an empty address space.

        Args:
            capacities: The bytes of each device.
            lock: The process's lock.
            one: True if host and device share one memory.
        """
        super().__init__(lock, one=one)
        self._next = [DEVICE_BASE + device * DEVICE_SPAN for device in range(len(capacities))]
        self._capacities = list(capacities)
        self._used = [0] * len(capacities)
        self._taken = [0] * len(capacities)

    # -- allocation -------------------------------------------------------------------------------

    def malloc(self, device: int, nbytes: int, policy: int, *, tail: bool = True) -> int:
        """Allocate `nbytes` bytes of `device`, filled with FRESH; return the address.

        Raises Refused: INVALID_PARAM for 0 bytes, RT_MEMORY_ALLOCATION if the device has too little
        memory left. Raises MemoryError if the simulating host has too little.
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
        # Filled without the lock, so that other threads do not wait.
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
        """Free device memory immediately. Checks BAD_FREE and HELD.

        Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for an address that is not a
        block's start.
        """
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, "free: the pointer is null")
        with self._lock:
            block = self._start_of(ptr, ("device",), BAD_FREE, "free")
            self.check_free(block, "free")
            self._remove(block)

    def malloc_host(self, nbytes: int) -> int:
        """Allocate `nbytes` bytes of pinned memory, filled with FRESH; return the address.

        Raises Refused: INVALID_PARAM for 0 bytes, BAD_ALLOC if the host has too little memory.
        """
        if nbytes == 0:
            raise Refused(Code.INVALID_PARAM, "malloc_host: size: found 0, expected 1 or more")
        try:
            whole = aligned(nbytes + 2 * _RED_BYTES + _ODD_BYTES)
        except MemoryError as error:
            raise Refused(
                Code.BAD_ALLOC, f"malloc_host: the host has less than {nbytes:,} bytes left"
            ) from error
        whole.fill(_RED)
        first = _RED_BYTES + (_ODD_BYTES if self.one_memory else 0)
        content = whole[first : first + nbytes]
        content.fill(FRESH)
        block = Block(content.ctypes.data, content, "pinned", None, 0)
        self._insert(block)
        return block.start

    def free_host(self, ptr: int) -> None:
        """Free pinned memory immediately.

        Checks BAD_FREE_HOST, RED_ZONE and, for evicted blocks, FREED. Raises Refused:
        INVALID_PARAM for null, RT_PARAM_INVALID for an address not from malloc_host.
        """
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, "free_host: the pointer is null")
        with self._lock:
            block = self._start_of(ptr, ("pinned",), BAD_FREE_HOST, "free_host")
            self._remove(block)
            self._freed.add(block)
        self._check_red_zones(block)

    def register(self, ptr: int, nbytes: int, device: int, *, pins: bool, maps: bool) -> int:
        """Pin existing host memory, map it for the device, or both.

        Returns the address for `device`; 0 if not mapped. The caller must not free the memory
        before `unregister`. Checks TWICE and UNALIGNED. Raises Refused: INVALID_PARAM for null
        and 0 bytes, RT_PARAM_INVALID for memory that is registered, pinned, on a device or
        unaligned.
        """
        if ptr == 0 or nbytes == 0:
            raise Refused(Code.INVALID_PARAM, f"host_register: found {nbytes} bytes at {ptr:#x}")
        if ptr < LOWEST or ptr + nbytes > resources.BASE:
            found = f"{nbytes:,} bytes at {ptr:#x}: not host memory"
            self._refuse(DEVICE_FOR_HOST, f"host_register: {found}")
        with self._lock:
            other = self._map.overlapping(ptr, nbytes)
            if other is not None:
                self._refuse(TWICE, f"host_register: {nbytes:,} bytes at {ptr:#x}: found {other!r}")
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
        """Return registered memory to ordinary host memory. Checks BAD_UNREGISTER.

        Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for an address that is not
        registered.
        """
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, "host_unregister: the pointer is null")
        with self._lock:
            block = self._start_of(ptr, ("registered", "mapped"), BAD_UNREGISTER, "host_unregister")
            self._remove(block)
            if block.alias is not None:
                self._remove(block.alias)

    # -- sharing ----------------------------------------------------------------------------------

    def move(self, block: Block, content: Bytes, lease: Lease) -> None:
        """Replace the block's content by shared memory; the block's address is unchanged.

        The caller has copied the bytes, and no thread uses the block during the call.
        """
        block.content, block.real, block.lease = content, content.ctypes.data, lease

    def adopt(self, device: int, content: Bytes, lease: Lease) -> Block:
        """Add memory of another process as a block, which is not charged to the device."""
        with self._lock:
            start = self._place(device, content.nbytes)
            block = Block(start, content, "imported", device, 0)
            block.lease = lease
            self._insert(block)
        return block

    # -- holding -----------------------------------------------------------------------------------

    def hold(self, ptr: int, nbytes: int, holder: str) -> Block:
        """Mark the device block of these bytes as in use by `holder`, e.g. "model 3 (weights)".

        Until `release`, freeing the block is a violation. Raises like `locate`.
        """
        block = self.locate(ptr, nbytes, want="device", what=holder)
        assert block is not None  # only pageable memory has no block
        with self._lock:
            block.holders[holder] += 1
        return block

    def check_free(self, block: Block, what: str) -> None:
        """Check HELD: a block that is freed must not be in use."""
        if block.holders:
            violate(HELD, f"{what}: {block!r}: in use by {', '.join(sorted(block.holders))}")

    def release(self, block: Block, holder: str) -> None:
        """Undo one `hold`."""
        with self._lock:
            block.holders[holder] -= 1
            block.holders += Counter()  # removes zero counts

    # -- usage ------------------------------------------------------------------------------------

    def free_and_total(self, device: int) -> tuple[int, int]:
        """Return free and total bytes of `device`. Memory of other processes counts as used."""
        total = self._capacities[device]
        return max(0, total - self._used[device] - self._taken[device]), total

    def used(self, device: int) -> int:
        """Return the bytes of `device` that blocks occupy, including rounding."""
        return self._used[device]

    def take(self, device: int, nbytes: int) -> None:
        """Set the bytes of `device` that other processes hold."""
        with self._lock:
            self._taken[device] = nbytes

    def check_host_writes(self) -> None:
        """Check RED_ZONE for all pinned memory, and FREED for freed pinned memory."""
        with self._lock:
            self._freed.clear()
        for block in self.blocks("pinned"):
            self._check_red_zones(block)

    def discard(self, block: Block) -> None:
        """Remove a block without checking rules, like the reset of a device."""
        with self._lock:
            self._remove(block)

    def __repr__(self) -> str:
        devices = ", ".join(
            f"device {device}: {used:,} of {self._capacities[device]:,}"
            for device, used in enumerate(self._used)
        )
        return f"<AddressSpace: {len(self._map.all())} block(s); {devices}>"

    # -- helpers ----------------------------------------------------------------------------------

    def _place(self, device: int, nbytes: int) -> int:
        # 64 bytes past a page: a multiple of 64 that is not a multiple of 128.
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
