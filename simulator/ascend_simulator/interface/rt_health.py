"""acl.rt: the status and utilization of a device."""

from __future__ import annotations

from ascend_simulator import process
from ascend_simulator.calls import I32, dictionary, value
from ascend_simulator.codes import Code, Refused

_NOT_TOLD = -1


@value("rt.query_device_status", I32)
def query_device_status(device: int) -> int:
    """Return a `DeviceStatus`, the value of `Process.device_status`."""
    _check(device, "query_device_status")
    return process.current().device_status


@dictionary("rt.get_device_utilization_rate", I32)
def get_device_utilization_rate(device: int) -> dict[str, int]:
    """Return percentages; -1 is unknown. The cube is 100 if a stream has tasks, else 0."""
    _check(device, "get_device_utilization_rate")
    now = process.current()
    busy = any(not stream.is_through for stream in now.streams_of(device))
    return {
        "cube_utilization": 100 * busy,
        "vector_utilization": _NOT_TOLD,
        "aicpu_utilization": _NOT_TOLD,
        "memory_utilization": 100 * now.memory.used(device) // now.settings.hbm_bytes,
    }


def _check(device: int, what: str) -> None:
    count = len(process.current().settings.device_ids)
    if not 0 <= device < count:
        text = f"{what}: device: found {device}, expected below {count}"
        raise Refused(Code.RT_INVALID_DEVICEID, text)
