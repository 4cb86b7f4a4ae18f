"""acl.rt: devices, contexts, streams and events."""

from __future__ import annotations

import math
from typing import Final

from ascend_simulator import process
from ascend_simulator.calls import I32, U32, U64, dictionary, pair, status, value
from ascend_simulator.codes import (
    Code,
    EventFlag,
    EventRecordedStatus,
    EventStatus,
    FailureMode,
    Refused,
    RunMode,
    StreamFlag,
)
from ascend_simulator.process import Process
from ascend_simulator.settings import operator_limit_s
from ascend_simulator.streams.stream import Stream

_LEAST_PRIORITY: Final = 7
_UNKNOWN: Final = -1
#: The code that a wait returns after the device is lost.
_LOST: Final = Code.RT_LOST_HEARTBEAT
_STREAM_FLAGS: Final = sum(StreamFlag)
_EVENT_FLAGS: Final = sum(EventFlag)

# -- devices -------------------------------------------------------------------------------------


@value("rt.get_device_count")
def get_device_count() -> int:
    """Return the number of devices that this process sees. Refused: RT_NO_DEVICE for none."""
    count = len(process.current().settings.device_ids)
    if not count:
        raise Refused(Code.RT_NO_DEVICE, "get_device_count: found no device")
    return count


@status("rt.set_device", I32)
def set_device(device: int) -> None:
    """Make the default context of `device` current in this thread."""
    process.current().contexts.set_device(device)


@value("rt.get_device", anytime=True)
def get_device() -> int:
    """Return the device of this thread's context.

    Allowed before acl.init(), because tools call it to test for a device. Refused: RT_CONTEXT_NULL.
    """
    return process.current().context().device


@status("rt.reset_device", I32)
def reset_device(device: int) -> None:
    """Undo one set_device."""
    process.current().contexts.reset_device(device)


@status("rt.reset_device_force", I32)
def reset_device_force(device: int) -> None:
    """Undo every set_device."""
    process.current().contexts.reset_device_force(device)


@value("rt.get_run_mode", anytime=True)
def get_run_mode() -> int:
    """Return the setting `run_mode`. Allowed before acl.init() and without a context."""
    is_device = process.current().settings.one_memory
    return int(RunMode.ACL_DEVICE if is_device else RunMode.ACL_HOST)


@value("rt.query_device_status", I32)
def query_device_status(device: int) -> int:
    """Return a `DeviceStatus`, the value of `Process.device_status`."""
    _check_device(device, "query_device_status")
    return process.current().device_status


@dictionary("rt.get_device_utilization_rate", I32)
def get_device_utilization_rate(device: int) -> dict[str, int]:
    """Return percentages; -1 means unknown. The cube has 100 if a stream has tasks, else 0."""
    _check_device(device, "get_device_utilization_rate")
    now = process.current()
    busy = any(not stream.is_finished for stream in now.streams_of(device))
    return {
        "cube_utilization": 100 * busy,
        "vector_utilization": _UNKNOWN,
        "aicpu_utilization": _UNKNOWN,
        "memory_utilization": 100 * now.memory.used(device) // now.settings.hbm_bytes,
    }


# -- contexts ------------------------------------------------------------------------------------


@value("rt.create_context", I32)
def create_context(device: int) -> int:
    """Create a context and make it current in this thread."""
    return process.current().contexts.create(device)


@status("rt.set_context", U64)
def set_context(context: int) -> None:
    """Make `context` current in this thread."""
    process.current().contexts.make_current(context)


@value("rt.get_context")
def get_context() -> int:
    """Return the current context of this thread."""
    return process.current().context().handle


@status("rt.destroy_context", U64)
def destroy_context(context: int) -> None:
    """Destroy a context of create_context. Refused: INVALID_PARAM for null."""
    if context == 0:
        raise Refused(Code.INVALID_PARAM, "destroy_context: the context is null")
    process.current().contexts.destroy(context)


# -- streams -------------------------------------------------------------------------------------


@value("rt.create_stream")
def create_stream() -> int:
    """Create a stream in the current context."""
    return process.current().create_stream()


@value("rt.create_stream_with_config", U32, U32)
def create_stream_with_config(priority: int, flag: int) -> int:
    """Create a stream. Priority and flags are checked, and have no effect in the simulator.

    Refused: RT_PARAM_INVALID for values that no document names (inferred).
    """
    if priority > _LEAST_PRIORITY or flag & ~_STREAM_FLAGS:
        raise Refused(
            Code.RT_PARAM_INVALID,
            f"create_stream_with_config: found priority {priority} and flag {flag:#x}",
        )
    return process.current().create_stream()


@pair("rt.device_get_stream_priority_range")
def device_get_stream_priority_range() -> tuple[int, int]:
    """Return the lowest and highest priority. The smaller number is the higher priority."""
    process.current().context()
    return _LEAST_PRIORITY, 0


@status("rt.destroy_stream", U64)
def destroy_stream(stream: int) -> None:
    """Destroy a stream after its tasks have run."""
    process.current().destroy_stream(stream)


@status("rt.set_stream_failure_mode", U64, U64)
def set_stream_failure_mode(stream: int, mode: int) -> None:
    """Set how a failed task affects later tasks; once per stream, and never on the default stream.

    Refused: INVALID_PARAM for null and unknown modes, RT_PARAM_INVALID for a second call (the codes
    are inferred).
    """
    if stream == 0 or mode >= len(FailureMode):
        raise Refused(
            Code.INVALID_PARAM, f"set_stream_failure_mode: found stream {stream:#x}, mode {mode}"
        )
    found = process.current().stream(stream, "set_stream_failure_mode")
    if found.failure_mode is not None:
        raise Refused(Code.RT_PARAM_INVALID, f"set_stream_failure_mode: {found.name}: already set")
    found.failure_mode = FailureMode(mode)


@status("rt.synchronize_stream", U64, releases_gil=True, lost=_LOST)
def synchronize_stream(stream: int) -> None:
    """Wait for all tasks of a stream of any context; report the first failure."""
    now = process.current()
    found = now.stream(stream, "synchronize_stream", any_context=True)
    _wait(now, found, None)


@status("rt.synchronize_stream_with_timeout", U64, I32, releases_gil=True, lost=_LOST)
def synchronize_stream_with_timeout(stream: int, timeout_ms: int) -> None:
    """Wait at most `timeout_ms`; -1 means no limit.

    Refused: RT_PARAM_INVALID, RT_STREAM_SYNC_TIMEOUT.
    """
    now = process.current()
    timeout_s = seconds(timeout_ms, "synchronize_stream_with_timeout")
    _wait(now, now.stream(stream, "synchronize_stream_with_timeout"), timeout_s)


@value("rt.stream_query", U64)
def stream_query(stream: int) -> int:
    """Return 0 if all tasks of the stream are complete, else 1. Failures are not reported."""
    now = process.current()
    return int(not now.streams.is_finished(now.stream(stream, "stream_query")))


@status("rt.set_op_wait_timeout", U32)
def set_op_wait_timeout(seconds: int) -> None:
    """Accept the maximum wait of a task on the device, which has no effect in the simulator."""
    process.current().context()


@status("rt.set_op_execute_time_out", U32)
def set_op_execute_time_out(seconds: int) -> None:
    """Set the time limit of this process's operators; 0 means no limit.

    A limit above the chip's maximum is reduced to it (inferred). Only the injected faults `slow`
    and `hang` exceed the limit.
    """
    now = process.current()
    now.context()
    most = operator_limit_s(now.settings.soc)
    now.faults.operator_limit_s = min(seconds, most) if seconds else math.inf


@status("rt.synchronize_device", releases_gil=True, lost=_LOST)
def synchronize_device() -> None:
    """Wait for all streams of the current context's device; report the first failure."""
    now = process.current()
    streams = now.streams_of(now.context().device)
    now.faults.strike("sync")
    for stream in streams:
        now.reports.check_wait(stream, "synchronize_device")
        stream.wait()
    # Wait for all streams before raising the first failure.
    for stream in streams:
        stream.report()
    check_lost(now)


# -- events --------------------------------------------------------------------------------------


@value("rt.create_event")
def create_event() -> int:
    """Create an event that orders tasks, records time and cannot be reset."""
    return process.current().events.create(None)


@value("rt.create_event_with_flag", U32)
def create_event_with_flag(flag: int) -> int:
    """Create an event with the properties in `flag`.

    Refused: INVALID_PARAM (inferred) for unknown flags, and for ACL_EVENT_EXTERNAL or ACL_EVENT_IPC
    combined with other flags.
    """
    return _create_with_flag("create_event_with_flag", flag, is_ex=False)


@value("rt.create_event_ex_with_flag", U32)
def create_event_ex_with_flag(flag: int) -> int:
    """Create an event that reset_event and query_event refuse; flags as create_event_with_flag."""
    return _create_with_flag("create_event_ex_with_flag", flag, is_ex=True)


@status("rt.record_event", U64, U64)
def record_event(event: int, stream: int) -> None:
    """Record the event after the stream's current last task."""
    now = process.current()
    found = now.events.get(event, "record_event")
    found.record(now.stream(stream, "record_event"))


@status("rt.stream_wait_event", U64, U64, releases_gil=True)
def stream_wait_event(stream: int, event: int) -> None:
    """Make all tasks submitted to the stream from now on wait for the event."""
    now = process.current()
    found = now.events.get(event, "stream_wait_event")
    found.delay(now.stream(stream, "stream_wait_event"))


@status("rt.synchronize_event", U64, releases_gil=True, lost=_LOST)
def synchronize_event(event: int) -> None:
    """Wait for the event. Task failures are reported only by synchronize_stream."""
    now = process.current()
    found = now.events.get(event, "synchronize_event")
    now.faults.strike("sync")
    found.synchronize(now.streams, None)
    check_lost(now)


@status("rt.synchronize_event_with_timeout", U64, I32, releases_gil=True, lost=_LOST)
def synchronize_event_with_timeout(event: int, timeout_ms: int) -> None:
    """Wait at most `timeout_ms`; -1 means no limit.

    Refused: RT_PARAM_INVALID, RT_EVENT_SYNC_TIMEOUT.
    """
    now = process.current()
    found = now.events.get(event, "synchronize_event_with_timeout")
    timeout_s = seconds(timeout_ms, "synchronize_event_with_timeout")
    now.faults.strike("sync")
    found.synchronize(now.streams, timeout_s)
    check_lost(now)


@value("rt.query_event", U64)
def query_event(event: int) -> int:
    """Return 0 if the event is complete, else 1. Deprecated on the device."""
    now = process.current()
    found = now.events.get(event, "query_event")
    found.check_query()
    done = found.is_done(now.streams)
    return int(
        EventStatus.ACL_EVENT_STATUS_COMPLETE if done else EventStatus.ACL_EVENT_STATUS_NOT_READY
    )


@value("rt.query_event_status", U64)
def query_event_status(event: int) -> int:
    """Return 1 if the event is complete, else 0."""
    now = process.current()
    done = now.events.get(event, "query_event_status").is_done(now.streams)
    # In CANN's headers these values are opposite to the values of the older `query_event`.
    return int(
        EventRecordedStatus.ACL_EVENT_RECORDED_STATUS_COMPLETE
        if done
        else EventRecordedStatus.ACL_EVENT_RECORDED_STATUS_NOT_READY
    )


@value("rt.event_elapsed_time", U64, U64, failed=0.0)
def event_elapsed_time(start: int, end: int) -> float:
    """Return the milliseconds between two events.

    Refused: RT_INTERNAL_ERROR for an event that was not recorded, RT_EVENT_TIMESTAMP_INVALID for an
    event that is not complete.
    """
    now = process.current()
    recorded, passed = Code.RT_INTERNAL_ERROR, Code.RT_EVENT_TIMESTAMP_INVALID
    begin_ns, end_ns = (
        now.events.get(event, "event_elapsed_time").stamp_ns(now.streams, recorded, passed)
        for event in (start, end)
    )
    return (end_ns - begin_ns) / 1e6


@value("rt.event_get_timestamp", U64)
def event_get_timestamp(event: int) -> int:
    """Return the event's completion time, microseconds. Refused: RT_EVENT_NOT_COMPLETE."""
    now = process.current()
    return now.events.get(event, "event_get_timestamp").stamp_ns(now.streams) // 1000


@status("rt.reset_event", U64, U64)
def reset_event(event: int, stream: int) -> None:
    """Return the event to the state before its first record."""
    now = process.current()
    found = now.events.get(event, "reset_event")
    now.stream(stream, "reset_event")
    found.reset()


@status("rt.destroy_event", U64)
def destroy_event(event: int) -> None:
    """Destroy an event immediately."""
    process.current().events.destroy(event)


# -- helpers -------------------------------------------------------------------------------------


def _wait(now: Process, stream: Stream, timeout_s: float | None) -> None:
    now.faults.strike("sync")
    now.reports.check_wait(stream, "synchronize_stream")
    stream.synchronize(timeout_s)
    check_lost(now)


def _create_with_flag(what: str, flag: int, *, is_ex: bool) -> int:
    alone = EventFlag.ACL_EVENT_EXTERNAL | EventFlag.ACL_EVENT_IPC
    is_mixed = flag & alone and flag & (flag - 1)
    if flag == 0 or flag & ~_EVENT_FLAGS or is_mixed:
        raise Refused(Code.INVALID_PARAM, f"{what}: found flag {flag:#x}")
    return process.current().events.create(EventFlag(flag), is_ex=is_ex)


def check_lost(now: Process) -> None:
    """Raise Refused if the device was lost during a wait."""
    if now.lost:
        raise Refused(_LOST, "the device was lost during the wait")


def seconds(timeout_ms: int, what: str) -> float | None:
    """Return the timeout in seconds; None for -1.

    Raises Refused RT_PARAM_INVALID for 0 and numbers below -1.
    """
    if timeout_ms == -1:
        return None
    if timeout_ms <= 0:
        raise Refused(Code.RT_PARAM_INVALID, f"{what}: found {timeout_ms} ms, expected -1 or > 0")
    return timeout_ms / 1000


def _check_device(device: int, what: str) -> None:
    count = len(process.current().settings.device_ids)
    if not 0 <= device < count:
        text = f"{what}: device: found {device}, expected below {count}"
        raise Refused(Code.RT_INVALID_DEVICEID, text)
