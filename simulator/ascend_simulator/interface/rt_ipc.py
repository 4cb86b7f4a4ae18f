"""acl.rt: device memory shared between processes of one device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from ascend_simulator import process
from ascend_simulator.calls import I32, STR, U64, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.copies import OTHER_DEVICE
from ascend_simulator.memory import segments
from ascend_simulator.memory.blocks import NORMAL_PAGE, Block
from ascend_simulator.memory.segments import KEY_BYTES, Segment
from ascend_simulator.process import Process
from ascend_simulator.settings import shares_memory
from ascend_simulator.violations import declare, violate

TWICE = declare(
    "ipc.twice",
    "A block must be closed before it is exported again, or imported again by the same process.",
)
PART = declare(
    "ipc.part-of-a-block", "A block must be exported from its start, in whole pages of 4 KiB."
)
IMPORTERS = declare(
    "ipc.closed-before-importers", "An exporter must close a key after all importers of the key."
)

_HOLDER: Final = "a key of another process"
_LONGEST: Final = 1024
_FLAGS: Final = (0, 1)


def _length(given: object) -> int:
    length = U64(given)
    if length >= _LONGEST:
        raise ValueError(f"length: found {length}, expected below {_LONGEST}")
    return length


def _pids(given: object) -> list[int]:
    if not isinstance(given, list):
        raise TypeError(f"a list is required (found {type(given).__name__})")
    return list(map(I32, given))


@value("rt.device_get_bare_tgid")
def device_get_bare_tgid() -> int:
    """Return the process id that exporters use to allow this process."""
    return os.getpid()


@value("rt.ipc_mem_get_export_key", U64, U64, _length, U64, failed="")
def ipc_mem_get_export_key(ptr: int, size: int, length: int, flag: int) -> str:
    """Return the key with which other processes of the device import the memory.

    `length` is 65. `flag` is 0 for allowed processes only, 1 for all. Checks like `Sharing.export`.
    Refused: also RT_PARAM_INVALID for another length or flag (inferred).
    """
    what = "ipc_mem_get_export_key"
    if length != KEY_BYTES:
        found = f"{what}: length: found {length}, expected {KEY_BYTES}"
        raise Refused(Code.RT_PARAM_INVALID, found)
    _check_flag(what, flag)
    now = process.current()
    return now.part(Sharing).export(now, ptr, size, everyone=flag == 1)


@status("rt.ipc_mem_set_import_pid", STR, _pids)
def ipc_mem_set_import_pid(key: str, pids: list[int]) -> None:
    """Allow processes, in addition to earlier calls. Checks like `Sharing.allow`."""
    process.current().part(Sharing).allow(key, pids)


@value("rt.ipc_mem_import_by_key", STR, U64)
def ipc_mem_import_by_key(key: str, flag: int) -> int:
    """Return the address of the memory in this process.

    `flag` is 0, or 1 for the peer access of two devices. Checks like `Sharing.take`. Refused: also
    RT_PARAM_INVALID for other flags (inferred).
    """
    _check_flag("ipc_mem_import_by_key", flag)
    now = process.current()
    return now.part(Sharing).take(now, key)


@status("rt.ipc_mem_close", STR)
def ipc_mem_close(key: str) -> None:
    """Close a key; importers close it before the exporter. Checks like `Sharing.close_key`."""
    now = process.current()
    now.part(Sharing).close_key(now, key)


def _check_flag(what: str, flag: int) -> None:
    if flag not in _FLAGS:
        raise Refused(Code.RT_PARAM_INVALID, f"{what}: flag: found {flag:#x}, expected 0 or 1")


class Sharing:
    """The keys that this process exported or imported: a `Part`. Safe from any thread."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[Segment, Block]] = {}

    def export(self, now: Process, ptr: int, nbytes: int, *, everyone: bool) -> str:
        """Return the key of `nbytes` bytes of device memory, which moves to shared memory.

        Waits for the streams; no other thread may use the block during the call. With `everyone`
        every process may import it. Checks PART, TWICE, `copies.OTHER_DEVICE` and the rules of
        `AddressSpace.locate`. Raises Refused: RT_CONTEXT_NULL, RT_FEATURE_NOT_SUPPORT on chips
        without sharing, INVALID_PARAM for null, RT_PARAM_INVALID.
        """
        what = "ipc_mem_get_export_key"
        device = _device(now, what)
        block = now.memory.locate(ptr, nbytes, want="device", what=what)
        assert block is not None  # `want="device"` refuses addresses outside blocks
        if block.kind == "imported":
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {block!r}: belongs to another process")
        if block.device != device:
            violate(OTHER_DEVICE, f"{what}: {block!r}: the context is of device {device}")
        if block.start != ptr or nbytes == 0 or nbytes % NORMAL_PAGE:
            _refuse(PART, f"{what}: {nbytes:,} bytes at {ptr:#x}: found {block!r}")
        # The bytes are copied to shared memory; a concurrent task would write to the old memory.
        now.streams.drain()
        with now.lock:
            if block.lease is not None:
                _refuse(TWICE, f"{what}: {block!r}: already exported")
            physical = now.settings.device_ids[device]
            segment = segments.export(block.content, nbytes, physical, everyone=everyone)
            now.memory.move(block, segment.content, segment)
            now.memory.hold(ptr, nbytes, _HOLDER)
            self._ends[segment.key] = segment, block
        return segment.key

    def allow(self, key: str, pids: Sequence[int]) -> None:
        """Allow these processes to import the key. Raises Refused RT_PARAM_INVALID."""
        what = "ipc_mem_set_import_pid"
        segment, _ = self._end_of(key, what)
        if not segment.is_exported:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {key!r}: belongs to another process")
        if not pids or min(pids) <= 0:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: found processes {list(pids)}")
        try:
            segment.allow(pids)
        except ValueError as error:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {error}") from error

    def take(self, now: Process, key: str) -> int:
        """Return the address in this process of memory of another process. Checks TWICE.

        Raises Refused: RT_CONTEXT_NULL, RT_FEATURE_NOT_SUPPORT on chips without sharing and if the
        memory and the context are of different devices, and like `segments.open_key`.
        """
        what = "ipc_mem_import_by_key"
        device = _device(now, what)
        with now.lock:
            if key in self._ends and not self._ends[key][0].is_exported:
                _refuse(TWICE, f"{what}: {key!r}: already imported")
            segment = segments.open_key(key)
            if segment.device != now.settings.device_ids[device]:
                segment.close()
                raise Refused(
                    Code.RT_FEATURE_NOT_SUPPORT, f"{what}: {key!r}: the memory is of another device"
                )
            block = now.memory.adopt(device, segment.content, segment)
            self._ends[key] = segment, block
        return block.start

    def close_key(self, now: Process, key: str) -> None:
        """End the sharing of exported memory, or release imported memory.

        Checks IMPORTERS for an exporter, `claims.FREE_BUSY` and `memory.HELD` for an importer.
        Raises Refused RT_PARAM_INVALID for a key that this process does not have.
        """
        what = "ipc_mem_close"
        segment, block = self._end_of(key, what)
        lives = now.memory.find(block.start) is block  # false after the device was reset
        if lives and segment.is_exported and segment.is_imported:
            violate(IMPORTERS, f"{what}: {block!r}: found a process that still imports it")
        if lives and not segment.is_exported:
            now.claims.check_idle(block, what)
            now.memory.check_free(block, what)
        with now.lock:
            del self._ends[key]
            segment.close()
            if lives and segment.is_exported:
                block.lease = None
                now.memory.release(block, _HOLDER)
            elif lives:
                now.memory.discard(block)

    def _end_of(self, key: str, what: str) -> tuple[Segment, Block]:
        found = self._ends.get(key)
        if found is None:
            raise Refused(Code.RT_PARAM_INVALID, f"{what}: {key!r}: not a key of this process")
        return found

    def live(self) -> list[str]:
        """Name the exported keys that were not closed. Imported memory is reported as memory."""
        ends = self._ends.values()
        return [f"key of {block!r}" for segment, block in ends if segment.is_exported]

    def close(self) -> None:
        """Close all keys."""
        for segment, _ in self._ends.values():
            segment.close()
        self._ends.clear()


def _device(now: Process, what: str) -> int:
    device = now.context().device
    if not shares_memory(now.settings.soc):
        text = f"{what}: not supported by {now.settings.soc}"
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, text)
    return device


def _refuse(rule: str, text: str) -> None:
    violate(rule, text)
    raise Refused(Code.RT_PARAM_INVALID, text)
