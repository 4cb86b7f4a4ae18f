"""acl.rt: events."""

from __future__ import annotations

from typing import Final

from ascend_simulator import process
from ascend_simulator.calls import I32, U32, U64, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.enumerations import EventFlag, EventRecordedStatus, EventStatus
from ascend_simulator.waiting import LOST, check_lost, seconds

_FLAGS: Final = sum(EventFlag)


@value("rt.create_event")
def create_event() -> int:
    """An event that orders and takes time, and cannot be reset."""
    return process.current().events.create(None)


@value("rt.create_event_with_flag", U32)
def create_event_with_flag(flag: int) -> int:
    """An event that does what `flag` says.

    Refused: INVALID_PARAM (an inference) for unknown flags, and for ACL_EVENT_EXTERNAL or
    ACL_EVENT_IPC beside others.
    """
    return _create_with_flag("create_event_with_flag", flag, is_ex=False)


@value("rt.create_event_ex_with_flag", U32)
def create_event_ex_with_flag(flag: int) -> int:
    """As create_event_with_flag; neither reset_event nor query_event takes it."""
    return _create_with_flag("create_event_ex_with_flag", flag, is_ex=True)


@status("rt.record_event", U64, U64)
def record_event(event: int, stream: int) -> None:
    """The event is where the stream now ends."""
    now = process.current()
    found = now.events.get(event, "record_event")
    found.record(now.stream(stream, "record_event"))


@status("rt.stream_wait_event", U64, U64, releases_gil=True)
def stream_wait_event(stream: int, event: int) -> None:
    """What is submitted to the stream from now on comes after the event."""
    now = process.current()
    found = now.events.get(event, "stream_wait_event")
    found.delay(now.stream(stream, "stream_wait_event"))


@status("rt.synchronize_event", U64, releases_gil=True, lost=LOST)
def synchronize_event(event: int) -> None:
    """Wait for the event. Failures of tasks are reported by synchronize_stream only."""
    now = process.current()
    found = now.events.get(event, "synchronize_event")
    now.faults.strike("sync")
    found.synchronize(now.streams, None)
    check_lost(now)


@status("rt.synchronize_event_with_timeout", U64, I32, releases_gil=True, lost=LOST)
def synchronize_event_with_timeout(event: int, timeout_ms: int) -> None:
    """Wait at most `timeout_ms`, -1 for ever. Refused: RT_PARAM_INVALID, RT_EVENT_SYNC_TIMEOUT."""
    now = process.current()
    found = now.events.get(event, "synchronize_event_with_timeout")
    timeout_s = seconds(timeout_ms, "synchronize_event_with_timeout")
    now.faults.strike("sync")
    found.synchronize(now.streams, timeout_s)
    check_lost(now)


@value("rt.query_event", U64)
def query_event(event: int) -> int:
    """Whether the event is passed: 0 complete, 1 not ready. Deprecated on the device."""
    now = process.current()
    found = now.events.get(event, "query_event")
    found.check_query()
    done = found.is_done(now.streams)
    return int(
        EventStatus.ACL_EVENT_STATUS_COMPLETE if done else EventStatus.ACL_EVENT_STATUS_NOT_READY
    )


@value("rt.query_event_status", U64)
def query_event_status(event: int) -> int:
    """Whether the event is passed: 0 not ready, 1 complete."""
    now = process.current()
    done = now.events.get(event, "query_event_status").is_done(now.streams)
    return int(
        EventRecordedStatus.ACL_EVENT_RECORDED_STATUS_COMPLETE
        if done
        else EventRecordedStatus.ACL_EVENT_RECORDED_STATUS_NOT_READY
    )


@value("rt.event_elapsed_time", U64, U64, failed=0.0)
def event_elapsed_time(start: int, end: int) -> float:
    """Milliseconds between two events. Refused: RT_EVENT_NOT_COMPLETE."""
    now = process.current()
    begin_ns, end_ns = (
        now.events.get(event, "event_elapsed_time").stamp_ns(now.streams) for event in (start, end)
    )
    return (end_ns - begin_ns) / 1e6


@value("rt.event_get_timestamp", U64)
def event_get_timestamp(event: int) -> int:
    """When the stream passed the event, microseconds. Refused: RT_EVENT_NOT_COMPLETE."""
    now = process.current()
    return now.events.get(event, "event_get_timestamp").stamp_ns(now.streams) // 1000


@status("rt.reset_event", U64, U64)
def reset_event(event: int, stream: int) -> None:
    """The event counts as not recorded."""
    now = process.current()
    found = now.events.get(event, "reset_event")
    now.stream(stream, "reset_event")
    found.reset()


@status("rt.destroy_event", U64)
def destroy_event(event: int) -> None:
    """End an event, at once."""
    process.current().events.destroy(event)


# -- inside --------------------------------------------------------------------------------------


def _create_with_flag(what: str, flag: int, *, is_ex: bool) -> int:
    alone = EventFlag.ACL_EVENT_EXTERNAL | EventFlag.ACL_EVENT_IPC
    is_mixed = flag & alone and flag & (flag - 1)
    if flag == 0 or flag & ~_FLAGS or is_mixed:
        raise Refused(Code.INVALID_PARAM, f"{what}: found flag {flag:#x}")
    return process.current().events.create(EventFlag(flag), is_ex=is_ex)
