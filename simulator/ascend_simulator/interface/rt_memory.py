"""acl.rt's memory: allocation, copies, and the attributes of an address."""

from __future__ import annotations

from typing import Any, Final

from ascend_simulator import process
from ascend_simulator.calls import I32, U32, U64, dictionary, pair, status, value
from ascend_simulator.codes import Code, HostRegister, MemAttr, Refused
from ascend_simulator.copies import (
    await_pageable,
    check_copy,
    check_fill,
    copy_now,
    is_pageable,
    submit_copy,
)
from ascend_simulator.memory.blocks import NORMAL_PAGE, page_bytes
from ascend_simulator.models.regions import allocate
from ascend_simulator.settings import has_hbm, registers_host_memory
from ascend_simulator.streams.tasks import Task

_HBM: Final = (
    MemAttr.ACL_HBM_MEM,
    MemAttr.ACL_HBM_MEM_HUGE,
    MemAttr.ACL_HBM_MEM_NORMAL,
    MemAttr.ACL_HBM_MEM_P2P_HUGE,
    MemAttr.ACL_HBM_MEM_P2P_NORMAL,
    MemAttr.ACL_HBM_MEM_HUGE1G,
    MemAttr.ACL_HBM_MEM_P2P_HUGE1G,
)
_REGISTER_FLAGS: Final = sum(HostRegister)
_LOCATION_HOST: Final = 0
_LOCATION_DEVICE: Final = 1
_LOCATION_UNREGISTERED: Final = 2


@value("rt.malloc", U64, U32)
def malloc(size: int, policy: int) -> int:
    """Allocate `size` bytes on the current context's device. Checks IN_RUN.

    Refused: RT_CONTEXT_NULL, INVALID_PARAM, RT_MEMORY_ALLOCATION.
    """
    return allocate(size, policy, tail=True)


@value("rt.malloc_align32", U64, U32)
def malloc_align32(size: int, policy: int) -> int:
    """Allocate like malloc, without the 32 bytes that malloc adds."""
    return allocate(size, policy, tail=False)


@value("rt.malloc_cached", U64, U32)
def malloc_cached(size: int, policy: int) -> int:
    """Allocate like malloc. The cache, mem_flush and mem_invalidate are not simulated."""
    return allocate(size, policy, tail=True)


@status("rt.mem_flush", U64, U64)
def mem_flush(ptr: int, size: int) -> None:
    """Check the range; nothing is flushed."""
    process.current().memory.locate(ptr, size, want="device", what="mem_flush")


@status("rt.mem_invalidate", U64, U64)
def mem_invalidate(ptr: int, size: int) -> None:
    """Check the range; nothing is invalidated."""
    process.current().memory.locate(ptr, size, want="device", what="mem_invalidate")


def _check_idle(now: process.Process, ptr: int, what: str) -> None:
    """Check `claims.FREE_BUSY` for the block that starts at `ptr`, if there is one."""
    block = now.memory.find(ptr)
    if block is not None and block.start == ptr:
        now.claims.check_idle(block, what)


@status("rt.free", U64)
def free(ptr: int) -> None:
    """Free device memory immediately.

    Checks `claims.FREE_BUSY` and the rules of `AddressSpace.free`. Refused: RT_CONTEXT_NULL
    (inferred).
    """
    now = process.current()
    now.context()
    _check_idle(now, ptr, "free")
    now.memory.free(ptr)


@value("rt.malloc_host", U64)
def malloc_host(size: int) -> int:
    """Allocate `size` bytes of pinned memory.

    Refused: RT_CONTEXT_NULL, INVALID_PARAM, BAD_ALLOC.
    """
    now = process.current()
    now.context()
    now.faults.strike("malloc_host")
    return now.memory.malloc_host(size)


@status("rt.free_host", U64)
def free_host(ptr: int) -> None:
    """Free pinned memory immediately.

    Checks `claims.FREE_BUSY` and the rules of `AddressSpace.free_host`. Refused: RT_CONTEXT_NULL
    (inferred).
    """
    now = process.current()
    now.context()
    _check_idle(now, ptr, "free_host")
    now.memory.free_host(ptr)


@status("rt.memcpy", U64, U64, U64, U64, I32)
def memcpy(dst: int, dst_max: int, src: int, count: int, kind: int) -> None:
    """Copy before returning. Does not wait for streams."""
    now = process.current()
    copy = check_copy(now, "memcpy", dst, dst_max, src, count, kind)
    if copy is not None:
        copy_now(now, copy)


@status("rt.memcpy_async", U64, U64, U64, U64, I32, U64)
def memcpy_async(dst: int, dst_max: int, src: int, count: int, kind: int, stream: int) -> None:
    """Queue a copy on the stream."""
    now = process.current()
    found = now.stream(stream, "memcpy_async")
    copy = check_copy(now, "memcpy_async", dst, dst_max, src, count, kind)
    if copy is not None:
        submit_copy(now, copy, found)


@status("rt.memset", U64, U64, I32, U64)
def memset(ptr: int, most: int, byte: int, count: int) -> None:
    """Fill `count` bytes before returning. Does not wait for streams."""
    now = process.current()
    target = check_fill(now, "memset", ptr, most, count)
    if target is not None:
        now.claims.host_access(ptr, count, write=True, what="memset")
        target.fill(byte & 0xFF)


@status("rt.memset_async", U64, U64, I32, U64, U64)
def memset_async(ptr: int, most: int, byte: int, count: int, stream: int) -> None:
    """Queue a fill of `count` bytes on the stream.

    Pageable memory violates `copies.PAGEABLE`, and the call waits, because its content is not
    checked for changes.
    """
    now = process.current()
    found = now.stream(stream, "memset_async")
    target = check_fill(now, "memset_async", ptr, most, count)
    if target is not None:
        fill = target.fill
        found.submit(Task(lambda: fill(byte & 0xFF), (), ((ptr, count),), "memset_async"))
        if is_pageable(now.memory.find(ptr)):  # after the submission, which detects races
            await_pageable(now, found, "memset_async")


@pair("rt.get_mem_info", I32)
def get_mem_info(attr: int) -> tuple[int, int]:
    """Return free and total bytes of the device; (0, 0) if the chip lacks this type of memory.

    Refused: RT_CONTEXT_NULL, RT_INVALID_MEMORY_TYPE for an unknown attribute.
    """
    now = process.current()
    device = now.context().device
    if not 0 <= attr < len(MemAttr):
        text = f"get_mem_info: attr: found {attr}, expected 0 to 11"
        raise Refused(Code.RT_INVALID_MEMORY_TYPE, text)
    is_there = (attr in _HBM) == has_hbm(now.settings.soc)
    answer = now.memory.free_and_total(device) if is_there else (0, 0)
    # Last, because other processes may allocate between this call and an allocation.
    now.faults.strike("mem_info")
    return answer


@value("rt.host_register", U64, U64, U32)
def host_register(ptr: int, size: int, kind: int) -> int:
    """Map existing host memory; return the address that tasks can use, but copies cannot.

    The memory stays pageable. Checks and refuses like `AddressSpace.register`. Refused:
    RT_CONTEXT_NULL, and RT_FEATURE_NOT_SUPPORT for a type other than 0 and for an unsupported chip
    (for the chip, inferred).
    """
    now = process.current()
    device = now.context().device
    _check_registering(now)
    if kind:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, f"host_register: type: found {kind}, expected 0")
    return now.memory.register(ptr, size, device, pins=False, maps=True)


@status("rt.host_register_v2", U64, U64, U32)
def host_register_v2(ptr: int, size: int, flag: int) -> None:
    """Map existing host memory, pin it, or both; `flag` has the bits of `HostRegister`.

    Checks and refuses like `AddressSpace.register`. Refused: RT_CONTEXT_NULL,
    RT_FEATURE_NOT_SUPPORT (inferred), RT_PARAM_INVALID for an unknown flag or 0.
    """
    now = process.current()
    device = now.context().device
    _check_registering(now)
    if flag == 0 or flag & ~_REGISTER_FLAGS:
        raise Refused(
            Code.RT_PARAM_INVALID, f"host_register_v2: flag: found {flag:#x}, expected 1 to 3"
        )
    pins, maps = flag & HostRegister.ACL_HOST_REG_PINNED, flag & HostRegister.ACL_HOST_REG_MAPPED
    now.memory.register(ptr, size, device, pins=bool(pins), maps=bool(maps))


def _check_registering(now: process.Process) -> None:
    if not registers_host_memory(now.settings.soc):
        text = f"host_register: not supported by {now.settings.soc}"
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)


@status("rt.host_unregister", U64)
def host_unregister(ptr: int) -> None:
    """Undo host_register.

    Checks `claims.FREE_BUSY` and the rules of `AddressSpace.unregister`.
    """
    now = process.current()
    now.context()
    _check_idle(now, ptr, "host_unregister")
    now.memory.unregister(ptr)


@dictionary("rt.pointer_get_attributes", U64)
def pointer_get_attributes(ptr: int) -> dict[str, Any]:
    """Return the memory type of an address: 0 pinned host, 1 device, 2 neither (inferred)."""
    block = process.current().memory.find(ptr)
    if block is None or is_pageable(block):
        location = {"id": 0, "type": _LOCATION_UNREGISTERED}
        page = NORMAL_PAGE
    elif block.device is None:
        location = {"id": 0, "type": _LOCATION_HOST}
        page = NORMAL_PAGE
    else:
        location = {"id": block.device, "type": _LOCATION_DEVICE}
        page = page_bytes(block.size, 0)
    return {"location": location, "page_size": page, "rsv": 0}
