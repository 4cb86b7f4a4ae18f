"""gRPC keepalive pings in both directions, without I/O or clock.

Times are in seconds, of one clock.
"""

from __future__ import annotations

import enum
import math

from reference_server.options import GrpcOptions

#: The minimum interval between pings on a connection without calls, as in RFC 1122 for TCP.
_IDLE_INTERVAL_S = 7_200.0
#: The option's value for "never".
_NEVER_MS = 2**31 - 1


class Action(enum.Enum):
    """The action that is due for a client."""

    NOTHING = enum.auto()
    PING = enum.auto()
    GIVE_UP = enum.auto()


class Keepalive:
    """Decides when a silent client is pinged, and when it counts as disconnected."""

    def __init__(self, options: GrpcOptions, now_s: float) -> None:
        self._interval_s = _seconds(options.keepalive_time_ms)
        self._timeout_s = _seconds(options.keepalive_timeout_ms)
        self._without_calls = options.keepalive_permit_without_calls
        self._max_pings = options.max_pings_without_data or math.inf
        self._pings = 0
        self._heard_s = now_s
        self._pinged_s: float | None = None

    def heard(self, now_s: float) -> None:
        """Bytes were received from the client."""
        self._heard_s = now_s
        self._pinged_s = None

    def answered(self) -> None:
        """A response was sent, which resets the count of pings without data."""
        self._pings = 0

    def next_s(self, now_s: float) -> float:
        """Return the time of the next call of `action`, if no bytes are received until then."""
        if self._pinged_s is not None:
            # After an answer, the next ping may be due long before the timeout of this ping.
            return min(self._pinged_s + self._timeout_s, now_s + self._interval_s)
        return self._heard_s + self._interval_s

    def action(self, now_s: float, *, has_calls: bool) -> Action:
        """Return the action that is due now. A returned PING counts as sent."""
        if self._pinged_s is not None:
            is_over = now_s >= self._pinged_s + self._timeout_s
            return Action.GIVE_UP if is_over else Action.NOTHING
        if now_s < self._heard_s + self._interval_s:
            return Action.NOTHING
        if self._pings >= self._max_pings or not (has_calls or self._without_calls):
            self._heard_s = now_s
            return Action.NOTHING
        self._pings += 1
        self._pinged_s = now_s
        return Action.PING


class PingStrikes:
    """Counts pings that a client sends too early."""

    def __init__(self, options: GrpcOptions) -> None:
        self._interval_s = options.min_recv_ping_interval_without_data_ms / 1000
        self._without_calls = options.keepalive_permit_without_calls
        self._max = options.max_ping_strikes or math.inf
        self._strikes = 0
        self._last_s = -math.inf

    def answered(self) -> None:
        """A response was sent: the client may ping again."""
        self._strikes = 0
        self._last_s = -math.inf

    def count_ping(self, now_s: float, *, has_calls: bool) -> bool:
        """Count a ping. Return True if the client has sent too many early pings."""
        idle = not has_calls and not self._without_calls
        allowed_s = self._last_s + (_IDLE_INTERVAL_S if idle else self._interval_s)
        self._last_s = now_s
        if now_s < allowed_s:
            self._strikes += 1
        return self._strikes > self._max


def _seconds(milliseconds: int) -> float:
    return math.inf if milliseconds >= _NEVER_MS else milliseconds / 1000
