"""The copies and fills of acl.rt: checks, directions and execution."""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from ascend_simulator.codes import Code, MemcpyKind, Refused
from ascend_simulator.memory.addresses import Borrowed
from ascend_simulator.memory.blocks import ALIGNMENT, Block, Bytes
from ascend_simulator.process import Process
from ascend_simulator.streams.stream import Stream
from ascend_simulator.streams.tasks import Task
from ascend_simulator.violations import declare, violate

KIND = declare("memcpy.kind", "The kind of a copy must match its two addresses.")
UNALIGNED = declare(
    "memcpy.unaligned",
    "Addresses of an asynchronous copy must be multiples of 64, as up to CANN 8.1.",
)
PAGEABLE = declare(
    "memcpy.pageable-async",
    "Host memory of an asynchronous copy or fill should be pinned; else the call waits.",
    caution=True,
)
CHANGED = declare(
    "memcpy.source-changed", "The source of an asynchronous copy must not change until it is done."
)
OVERLAP = declare(
    "memcpy.overlap", "The two ends of a copy must not overlap: no document defines the result."
)
OTHER_DEVICE = declare("memory.other-device", "Use memory only in a context of its device.")

MAPPED_ADDRESS = declare(
    "memcpy.mapped-address", "Do not copy to or from the device address of registered host memory."
)

_DIRECTIONS: Final = (
    MemcpyKind.ACL_MEMCPY_HOST_TO_HOST,
    MemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE,
    MemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST,
    MemcpyKind.ACL_MEMCPY_DEVICE_TO_DEVICE,
)
"""The kind of a copy, by 2 * (from a device) + (to a device)."""

_FITS: Final[tuple[tuple[int, ...], ...]] = ((0, 4), (1, 4, 5), (2, 4), (3, 4))
"""The kinds that a caller may name, by 2 * (from a device) + (to a device)."""

_KINDS: Final = 6
"""The number of kinds that the calls accept; they refuse the last two of the enumeration."""
_WHOLE_BYTES: Final = 16 * 1024
_PIECES: Final = 16


class _End(NamedTuple):
    """One end of a copy: the caller's address, the block, and the host address of the bytes."""

    ptr: int
    block: Block | None
    real: int
    on_device: bool


class Copy(NamedTuple):
    """A checked copy of `nbytes` (1 or more) bytes."""

    what: str
    source: _End
    target: _End
    nbytes: int
    kind: MemcpyKind
    """The direction, derived from the addresses."""

    def perform(self, now: Process) -> None:
        """Move the bytes, at the simulated rate. Releases the GIL."""
        now.faults.strike("copy")
        rate = now.settings.copy_gbps
        one = now.memory.one_memory
        if rate and self.source.on_device != self.target.on_device and not one:
            time.sleep(self.nbytes / (rate * 1e9))
        ctypes.memmove(self.target.real, self.source.real, self.nbytes)
        now.counters.copied(self.kind, self.nbytes)


def check_copy(
    now: Process, what: str, dst: int, dst_max: int, src: int, count: int, kind: int
) -> Copy | None:
    """Check a copy and return it; None for 0 bytes.

    Checks KIND, OVERLAP, OTHER_DEVICE, MAPPED_ADDRESS and the rules of `AddressSpace.locate` and
    `Borrowed`. Raises Refused: INVALID_PARAM for null and unknown kinds, RT_PARAM_INVALID if
    `count` exceeds `dst_max`, RT_CONTEXT_NULL.
    """
    if count == 0:
        return None
    if dst == 0 or src == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found a null pointer")
    if not 0 <= kind < _KINDS:
        raise Refused(Code.INVALID_PARAM, f"{what}: kind: found {kind}, expected 0 to {_KINDS - 1}")
    if count > dst_max:
        raise Refused(
            Code.RT_PARAM_INVALID,
            f"{what}: found {count:,} bytes, expected at most the target's {dst_max:,}",
        )
    context = now.context()
    source = _end(now, what, src, count, context.device, write=False)
    target = _end(now, what, dst, count, context.device, write=True)
    # Host addresses are compared, because the device address of an alias differs.
    if abs(source.real - target.real) < count:
        violate(OVERLAP, f"{what}: {count:,} bytes from {src:#x} to {dst:#x} overlap")
    direction = 2 * source.on_device + target.on_device
    if now.memory.one_memory:  # CANN performs all copies as device to device
        kind, direction = 4, 3
    if kind not in _FITS[direction]:
        expected = _DIRECTIONS[direction].name
        violate(KIND, f"{what}: found {MemcpyKind(kind).name}, expected {expected}")
    return Copy(what, source, target, count, _DIRECTIONS[direction])


def copy_now(now: Process, copy: Copy) -> None:
    """Perform the copy before returning. Checks `claims.BUSY`."""
    claims = now.claims
    claims.host_access(copy.source.ptr, copy.nbytes, write=False, what=copy.what)
    claims.host_access(copy.target.ptr, copy.nbytes, write=True, what=copy.what)
    copy.perform(now)


def submit_copy(now: Process, copy: Copy, stream: Stream) -> None:
    """Queue the copy on the stream. If an end is pageable memory, also wait for the copy.

    Checks UNALIGNED, `claims.RACE` and PAGEABLE; CHANGED when the copy runs. Raises Refused
    RT_FEATURE_NOT_SUPPORT between host addresses, and like `Stream.submit`.
    """
    if not (copy.source.on_device or copy.target.on_device):
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, f"{copy.what}: both ends are host memory")
    for end in (copy.source, copy.target):
        if end.ptr % ALIGNMENT:
            violate(
                UNALIGNED,
                f"{copy.what}: {end.ptr:#x}: found {end.ptr % ALIGNMENT} bytes past a multiple "
                f"of {ALIGNMENT}",
            )
    pageable = is_pageable(copy.source.block) or is_pageable(copy.target.block)
    if pageable or copy.source.on_device:
        # The source needs no check: the caller waits, or the rules of streams cover the source.
        task = _task(copy, lambda: copy.perform(now))
    else:
        task = _watched(now, copy)
    stream.submit(task)
    if pageable:
        await_pageable(now, stream, copy.what)


def is_pageable(block: Block | None) -> bool:
    """Return whether memory is not pinned, from its block; None is memory without a block."""
    return block is None or block.kind == "mapped"


def await_pageable(now: Process, stream: Stream, what: str) -> None:
    """Wait for submitted work on pageable memory, which violates PAGEABLE."""
    violate(PAGEABLE, f"{what}: found pageable host memory; the call waits")
    now.streams.wait(stream.record(), None)


def check_fill(now: Process, what: str, ptr: int, most: int, count: int) -> Bytes | None:
    """Return the bytes to fill; None for 0 bytes. Raises like `check_copy`."""
    if count == 0:
        return None
    if ptr == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: found a null pointer")
    if count > most:
        text = f"{what}: found {count:,} bytes, expected at most {most:,}"
        raise Refused(Code.RT_PARAM_INVALID, text)
    context = now.context()
    _end(now, what, ptr, count, context.device, write=True)
    return now.memory.resolve(ptr, count, want="any", write=True, what=what)


def fingerprint(content: Bytes) -> int:
    """Return a checksum that detects changes of the content.

    Covers all bytes of content up to 16 KiB, and sixteen evenly spread pieces of larger content, so
    that the checksum of a large copy costs less than the copy.
    """
    if content.nbytes <= _WHOLE_BYTES:
        return zlib.adler32(content.data)
    step = content.nbytes // _PIECES
    pieces = content[: step * _PIECES].reshape(_PIECES, step)[:, : _WHOLE_BYTES // _PIECES]
    return zlib.adler32(pieces.tobytes())


def _watched(now: Process, copy: Copy) -> Task:
    """Return a task that checks whether the source has changed while queued, and copies."""
    block = copy.source.block
    assert block is not None
    offset = copy.source.ptr - block.start
    source = block.content[offset : offset + copy.nbytes]
    before = fingerprint(source)

    def run() -> None:
        if fingerprint(source) != before:
            violate(
                CHANGED,
                f"{copy.what}: found that the {copy.nbytes:,} bytes at {copy.source.ptr:#x} have "
                "changed since the copy was submitted",
            )
        copy.perform(now)

    return _task(copy, run)


def _task(copy: Copy, run: Callable[[], None]) -> Task:
    return Task(
        run,
        reads=((copy.source.ptr, copy.nbytes),),
        writes=((copy.target.ptr, copy.nbytes),),
        label=copy.what,
        kind=copy.kind.name,
    )


def _end(now: Process, what: str, ptr: int, nbytes: int, device: int, *, write: bool) -> _End:
    block = now.memory.locate(ptr, nbytes, want="any", what=what)
    if block is None:
        now.part(Borrowed).check(ptr, nbytes, what, write=write)
        return _End(ptr, None, ptr, False)
    if block.kind == "alias":
        violate(MAPPED_ADDRESS, f"{what}: {ptr:#x}: found {block!r}")
    owner = block.device
    if owner is not None and owner != device:
        violate(OTHER_DEVICE, f"{what}: {block!r}: the context is of device {device}")
    return _End(ptr, block, block.real + ptr - block.start, owner is not None)
