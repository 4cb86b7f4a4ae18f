"""The memory map: device memory, which the host cannot reach, and pinned host memory.

A device address is one that no host mapping has, so that reading it on the host faults at once; the
bytes behind it lie elsewhere and are reached by `resolve` alone. Its addresses are never given
twice, so a use after free is always found. Pinned memory is real host memory between red zones,
and held back for a while when it was freed. Any other host address counts as pageable: nothing is
known of it. Safe from any thread.
"""

from __future__ import annotations

from collections import Counter
from threading import RLock
from typing import Final, Literal, NoReturn, TypeAlias

from ascend_simulator import handles
from ascend_simulator.accounting import ALIGNMENT, NORMAL_PAGE, charged_bytes, round_up
from ascend_simulator.block_map import BlockMap
from ascend_simulator.blocks import FRESH, Block, Bytes, Kind, aligned, host_view
from ascend_simulator.codes import Code, Refused
from ascend_simulator.quarantine import FREED, Quarantine
from ascend_simulator.violations import declare, violate

Want: TypeAlias = Literal["device", "host", "any"]

DEVICE_BASE: Final = 0x00DE_0000_0000_0000
"""Device memory lies from here on. Bit 55 keeps it out of user mappings on arm64 and x86-64."""

DEVICE_SPAN: Final = 1 << 46
"""Addresses of one device, enough never to give one twice."""

_RED: Final = 0xFD
_RED_BYTES: Final = 64
_LOWEST: Final = 0x10000  # below it no program has memory

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
BAD_FREE = declare("memory.bad-free", "free gets what malloc gave, unchanged, and gets it once.")
BAD_FREE_HOST = declare(
    "memory.bad-free-host", "free_host gets what malloc_host gave, and gets it once."
)
HELD = declare("memory.free-while-held", "Memory of a loaded model is freed after its unload.")
RED_ZONE = declare("memory.red-zone", "Nothing writes before or behind a block of pinned memory.")
TWICE = declare("memory.registered-twice", "Host memory is registered once, and not while pinned.")
BAD_UNREGISTER = declare("memory.bad-unregister", "host_unregister gets what was registered.")


class AddressSpace:
    """All blocks of the process, on all devices and pinned, and the books of each device."""

    def __init__(self, capacities: list[int], lock: RLock) -> None:
        """capacities: bytes of each device."""
        self._lock = lock
        self._map = BlockMap()
        self.find = self._map.find
        """The living block that holds the byte at an address, None if there is none."""
        self._next = [DEVICE_BASE + device * DEVICE_SPAN for device in range(len(capacities))]
        self._capacities = list(capacities)
        self._used = [0] * len(capacities)
        self._taken = [0] * len(capacities)
        self._freed = Quarantine()

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
            block = self._start_of(ptr, "device", BAD_FREE, "free")
            if block.holders:
                holders = ", ".join(sorted(block.holders))
                violate(HELD, f"free: {block!r}: found in use by {holders}")
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
            block = self._start_of(ptr, "pinned", BAD_FREE_HOST, "free_host")
            self._remove(block)
            self._freed.add(block)
        self._check_red_zones(block)

    def register(self, ptr: int, nbytes: int, device: int) -> int:
        """Existing host memory is pinned from now on; its address for `device`. Violates TWICE.

        The caller keeps it mapped until `unregister`. Raises Refused: INVALID_PARAM for null and 0
        bytes, RT_PARAM_INVALID for what is pinned or on a device.
        """
        if ptr == 0 or nbytes == 0:
            raise Refused(Code.INVALID_PARAM, f"host_register: found {nbytes} bytes at {ptr:#x}")
        if ptr >= handles.BASE or ptr < _LOWEST:
            self._refuse(DEVICE_FOR_HOST, f"host_register: {ptr:#x}: found no host memory")
        with self._lock:
            other = self._map.overlapping(ptr, nbytes)
            if other is not None:
                self._refuse(
                    TWICE, f"host_register: {nbytes:,} bytes at {ptr:#x}: found {other!r} there"
                )
            content = host_view(ptr, nbytes)
            block = Block(ptr, content, "registered", None, 0)
            block.alias = Block(self._place(device, nbytes), content, "alias", device, 0)
            block.alias.uses = block.uses  # the same bytes
            self._insert(block)
            self._insert(block.alias)
        return block.alias.start

    def unregister(self, ptr: int) -> None:
        """Registered memory is ordinary host memory again. Violates BAD_UNREGISTER.

        Raises Refused: INVALID_PARAM for null, RT_PARAM_INVALID for what was not registered.
        """
        if ptr == 0:
            raise Refused(Code.INVALID_PARAM, "host_unregister: found a null pointer")
        with self._lock:
            block = self._start_of(ptr, "registered", BAD_UNREGISTER, "host_unregister")
            self._remove(block)
            if block.alias is not None:
                self._remove(block.alias)

    # -- use --------------------------------------------------------------------------------------

    def locate(self, ptr: int, nbytes: int, *, want: Want, what: str = "memory") -> Block | None:
        """The block that holds `nbytes` (0 or more) from `ptr`; None for pageable host memory.

        what: begins the message. Violates FREED, UNKNOWN, BEYOND, DEVICE_FOR_HOST, HOST_FOR_DEVICE.
        Raises Refused RT_PARAM_INVALID after a violation that lenient mode lets pass, and
        INVALID_PARAM for null.
        """
        block = self.find(ptr)
        if block is None:
            if not _LOWEST <= ptr < handles.BASE:
                self._refuse_stray(ptr, what)
            if want == "device":
                self._refuse(HOST_FOR_DEVICE, f"{what}: {ptr:#x}: found host memory")
            with self._lock:
                gone = self._freed.find(ptr)
            if gone is not None:
                self._refuse(FREED, f"{what}: {ptr:#x}: found {gone!r}, which was freed")
            return None
        if ptr + nbytes > block.start + block.size:
            self._refuse(
                BEYOND,
                f"{what}: {nbytes:,} bytes at {ptr:#x}, byte {ptr - block.start:,} of {block!r}: "
                f"found {ptr + nbytes - block.end:,} beyond its end",
            )
        if want == "device":
            if block.kind != "device":  # the alias of host memory is that all the same
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

    def hold(self, ptr: int, nbytes: int, holder: str) -> Block:
        """Mark the device block of these bytes as in use by `holder`, e.g. "model 3 (weights)".

        Freeing it is then a violation, until `release`. Raises as `locate` does.
        """
        block = self.locate(ptr, nbytes, want="device", what=holder)
        assert block is not None  # only pageable memory has none
        with self._lock:
            block.holders[holder] += 1
        return block

    def release(self, block: Block, holder: str) -> None:
        """Undo one `hold`."""
        with self._lock:
            block.holders[holder] -= 1
            block.holders += Counter()  # drops what is zero

    # -- books ------------------------------------------------------------------------------------

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

    def blocks(self, kind: Kind | None = None) -> list[Block]:
        """The living blocks, of one kind or all, by address."""
        return [block for block in self._map.all() if kind in (None, block.kind)]

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
        books = ", ".join(
            f"device {device}: {used:,} of {self._capacities[device]:,}"
            for device, used in enumerate(self._used)
        )
        return f"<AddressSpace: {len(self._map.all())} block(s); {books}>"

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
        if block.device is not None:
            self._used[block.device] -= block.charged

    def _start_of(self, ptr: int, kind: Kind, rule: str, what: str) -> Block:
        block = self.find(ptr)
        if block is None:
            found = self._map.history(ptr) or "nothing that was allocated"
            self._refuse(rule, f"{what}: {ptr:#x}: found {found}")
        if block.kind != kind:
            self._refuse(rule, f"{what}: {ptr:#x}: found {block!r}")
        if block.start != ptr:
            self._refuse(rule, f"{what}: {ptr:#x}: found byte {ptr - block.start:,} of {block!r}")
        return block

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

    def _check_red_zones(self, block: Block) -> None:
        whole = host_view(block.start - _RED_BYTES, block.size + 2 * _RED_BYTES)
        for side, zone in (("before", whole[:_RED_BYTES]), ("behind", whole[-_RED_BYTES:])):
            if (zone != _RED).any():
                violate(RED_ZONE, f"{block!r}: found bytes written {side} it")
