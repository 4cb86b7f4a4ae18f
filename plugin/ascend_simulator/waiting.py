"""What all functions that wait for the device have in common."""

from __future__ import annotations

from typing import Final

from ascend_simulator.codes import Code, Refused
from ascend_simulator.process import Process

LOST: Final = Code.RT_LOST_HEARTBEAT
"""What waiting gives once the device is lost."""


def check_lost(now: Process) -> None:
    """Raises Refused LOST if the device was lost meanwhile."""
    if now.lost:
        raise Refused(LOST, "the device was lost while it was waited for")


def seconds(timeout_ms: int, what: str) -> float | None:
    """The timeout; None for -1. Raises Refused RT_PARAM_INVALID for 0 and below -1."""
    if timeout_ms == -1:
        return None
    if timeout_ms <= 0:
        raise Refused(Code.RT_PARAM_INVALID, f"{what}: found {timeout_ms} ms, expected -1 or > 0")
    return timeout_ms / 1000
