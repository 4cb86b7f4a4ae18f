"""Pings of gRPC, both ways: facts and times go in, decisions come out.

Times are in seconds, of one clock.
"""

from __future__ import annotations

import enum
import math

from reference_server.options import GrpcOptions

#: How far apart pings must be on a connection without calls (as RFC 1122 has it for TCP).
_IDLE_INTERVAL_S = 7_200.0
#: What an option says for "never".
_NEVER_MS = 2**31 - 1


class Action(enum.Enum):
    """What is to be done about a client."""

    NOTHING = enum.auto()
    PING = enum.auto()
    GIVE_UP = enum.auto()


class Keepalive:
    """Decides when a client that says nothing is pinged, and when it counts as gone."""

    def __init__(self, options: GrpcOptions, now_s: float) -> None:
        self._interval_s = _seconds(options.keepalive_time_ms)
        self._timeout_s = _seconds(options.keepalive_timeout_ms)
        self._without_calls = options.keepalive_permit_without_calls
        self._max_pings = options.max_pings_without_data or math.inf
        self._pings = 0
        self._heard_s = now_s
        self._asked_s: float | None = None

    def heard(self, now_s: float) -> None:
        """The client said something."""
        self._heard_s = now_s
        self._asked_s = None

    def answered(self) -> None:
        """A call was answered, so that pings are no idle talk."""
        self._pings = 0

    def next_s(self, now_s: float) -> float:
        """When to ask `action` next, however much is heard until then."""
        if self._asked_s is not None:
            # After an answer the next ping may be due long before the limit of this one.
            return min(self._asked_s + self._timeout_s, now_s + self._interval_s)
        return self._heard_s + self._interval_s

    def action(self, now_s: float, *, has_calls: bool) -> Action:
        """What to do now; PING is taken as done."""
        if self._asked_s is not None:
            is_over = now_s >= self._asked_s + self._timeout_s
            return Action.GIVE_UP if is_over else Action.NOTHING
        if now_s < self._heard_s + self._interval_s:
            return Action.NOTHING
        if self._pings >= self._max_pings or not (has_calls or self._without_calls):
            self._heard_s = now_s
            return Action.NOTHING
        self._pings += 1
        self._asked_s = now_s
        return Action.PING


class PingStrikes:
    """Counts pings that a client sends sooner than it may."""

    def __init__(self, options: GrpcOptions) -> None:
        self._interval_s = options.min_recv_ping_interval_without_data_ms / 1000
        self._without_calls = options.keepalive_permit_without_calls
        self._max = options.max_ping_strikes or math.inf
        self._strikes = 0
        self._last_s = -math.inf

    def answered(self) -> None:
        """Something was sent to the client: it may ping again."""
        self._strikes = 0
        self._last_s = -math.inf

    def is_too_much(self, now_s: float, *, has_calls: bool) -> bool:
        """Count a ping; True if that is the end of patience."""
        idle = not has_calls and not self._without_calls
        allowed_s = self._last_s + (_IDLE_INTERVAL_S if idle else self._interval_s)
        self._last_s = now_s
        if now_s < allowed_s:
            self._strikes += 1
        return self._strikes > self._max


def _seconds(milliseconds: int) -> float:
    return math.inf if milliseconds >= _NEVER_MS else milliseconds / 1000
