"""acl.rt's callbacks: functions of the program that are queued on a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ascend_simulator import process
from ascend_simulator.calls import I32, U64, status
from ascend_simulator.codes import Code, Refused

_BLOCK_TYPES = (0, 1)
"""ACL_CALLBACK_NO_BLOCK, ACL_CALLBACK_BLOCK."""


def _function(given: object) -> Callable[[Any], object]:
    if not callable(given):
        raise TypeError("parameter must be callable")
    return given


def _as_given(given: object) -> object:
    return given


@status("rt.subscribe_report", U64, U64)
def subscribe_report(thread_id: int, stream: int) -> None:
    """Make a thread run the stream's callbacks, when it calls acl.rt.process_report."""
    now = process.current()
    found = now.stream(stream, "subscribe_report")
    now.reports.subscribe(thread_id, found, now.context().device)


@status("rt.unsubscribe_report", U64, U64)
def unsubscribe_report(thread_id: int, stream: int) -> None:
    """Undo subscribe_report."""
    now = process.current()
    now.reports.unsubscribe(thread_id, now.stream(stream, "unsubscribe_report"))


@status("rt.launch_callback", _function, _as_given, I32, U64)
def launch_callback(
    function: Callable[[Any], object], argument: object, block_type: int, stream: int
) -> None:
    """Queue a call of `function(argument)` on the stream. Refused: INVALID_PARAM."""
    if block_type not in _BLOCK_TYPES:
        text = f"launch_callback: block type: found {block_type}, expected 0 or 1"
        raise Refused(Code.INVALID_PARAM, text)
    now = process.current()
    found = now.stream(stream, "launch_callback")
    now.reports.launch(function, argument, found, blocks=bool(block_type))


@status("rt.process_report", I32, releases_gil=True, lost=Code.RT_LOST_HEARTBEAT)
def process_report(timeout_ms: int) -> None:
    """Run one callback of this thread; wait for it at most `timeout_ms`. -1 means no limit.

    Refused: INVALID_PARAM for 0 and numbers below -1.
    """
    if timeout_ms == 0 or timeout_ms < -1:
        text = f"process_report: found {timeout_ms} ms, expected -1 or > 0"
        raise Refused(Code.INVALID_PARAM, text)
    process.current().reports.process(None if timeout_ms == -1 else timeout_ms / 1000)
