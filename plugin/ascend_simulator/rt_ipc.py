"""acl.rt: device memory shared between the processes of one device."""

from __future__ import annotations

import os
from typing import Final

from ascend_simulator import process
from ascend_simulator.calls import I32, STR, U64, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.segments import KEY_BYTES
from ascend_simulator.sharing import Sharing

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
    """The number under which other processes allow this one."""
    return os.getpid()


@value("rt.ipc_mem_get_export_key", U64, U64, _length, U64, failed="")
def ipc_mem_get_export_key(ptr: int, size: int, length: int, flag: int) -> str:
    """The key under which other processes of the device get the memory.

    length: 65. flag: 0 for processes that are allowed, 1 for all. As `Sharing.export`; refused
    besides: RT_PARAM_INVALID for another length and other flags (an inference).
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
    """Allow processes; a second call adds to the first. As `Sharing.allow`."""
    process.current().part(Sharing).allow(key, pids)


@value("rt.ipc_mem_import_by_key", STR, U64)
def ipc_mem_import_by_key(key: str, flag: int) -> int:
    """The address of the memory in this process. flag: 0, or 1 for the peer access of two devices.

    As `Sharing.take`; refused besides: RT_PARAM_INVALID for other flags (an inference).
    """
    _check_flag("ipc_mem_import_by_key", flag)
    now = process.current()
    return now.part(Sharing).take(now, key)


@status("rt.ipc_mem_close", STR)
def ipc_mem_close(key: str) -> None:
    """End the sharing of a key, of an importer before the exporter. As `Sharing.close_key`."""
    now = process.current()
    now.part(Sharing).close_key(now, key)


def _check_flag(what: str, flag: int) -> None:
    if flag not in _FLAGS:
        raise Refused(Code.RT_PARAM_INVALID, f"{what}: flag: found {flag:#x}, expected 0 or 1")
