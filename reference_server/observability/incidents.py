"""Reports connections that ended with an error, and delays of the event loop.

Both are counted in metrics and logged at most once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from reference_server.core.telemetry import FamilyHead, MetricKind, Sample
from reference_server.observability.executions import LONG

log = logging.getLogger(__name__)

#: The shortest time between two log lines about the same kind of incident.
_BETWEEN_LINES_S = 60.0
#: The interval of the measurements of the event loop's delay.
_TICK_S = 0.1
#: Delays from this value on are logged.
_LATE_S = 0.1
#: The greatest delay is that of two windows: the current and the previous one.
_WINDOW_S = 30.0

ENDED = FamilyHead(
    "ge_server_connections_ended_total",
    "Number of connections and calls that were refused, closed early or dropped, by reason",
    MetricKind.COUNTER,
)
_LAG_SUM = FamilyHead(
    "ge_server_loop_lag_seconds_total",
    "Sum of the delays of the event loop's ticks, of which there are ten per second",
    MetricKind.COUNTER,
)
_LAG_TICKS = FamilyHead(
    "ge_server_loop_ticks_total",
    "Number of the event loop's ticks",
    MetricKind.COUNTER,
)
_LAG_GREATEST = FamilyHead(
    "ge_server_loop_lag_greatest_seconds",
    "Greatest delay of a tick of the event loop in the last 30 to 60 seconds",
    MetricKind.GAUGE,
)
#: Families that Triton does not have.
OPERATORS_FAMILIES = (ENDED, LONG, _LAG_SUM, _LAG_TICKS, _LAG_GREATEST)


class Incidents:
    """Counts incidents of connections by protocol and reason. Thread-safe.

    The first incident of a kind is logged at once, later ones at most once a minute with their
    number. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], _Tally] = {}

    def of(self, protocol: str) -> Callable[[str, str], None]:
        """Return a function that counts an incident of a protocol by its reason and details."""
        return partial(self.count, protocol)

    def count(self, protocol: str, reason: str, details: str) -> None:
        """Count an incident. `details` are logged if this incident is logged."""
        now_s = self._clock()
        with self._lock:
            tally = self._found.setdefault((protocol, reason), _Tally())
            tally.count += 1
            tally.last = details
            line = tally.due(now_s)
        if line:
            self._log(protocol, reason, line)

    def log_pending(self) -> None:
        """Log the incidents whose minute has passed. Must be called regularly."""
        now_s = self._clock()
        with self._lock:
            due = {key: tally.due(now_s) for key, tally in self._found.items()}
        for (protocol, reason), line in due.items():
            if line:
                self._log(protocol, reason, line)

    def samples(self) -> list[Sample]:
        """Return the counters."""
        with self._lock:
            return [
                Sample((("protocol", protocol), ("reason", reason)), tally.count)
                for (protocol, reason), tally in self._found.items()
            ]

    def _log(self, protocol: str, reason: str, line: str) -> None:
        log.info("%s connections ended, %s: %s", protocol, reason, line)


class _Tally:
    """The number of incidents of one kind, and how many of them are logged."""

    __slots__ = ("_logged", "_logged_s", "count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._logged = 0
        self._logged_s: float | None = None

    def due(self, now_s: float) -> str:
        """Return the text to log now; empty if there is nothing new, or it is too early."""
        new = self.count - self._logged
        too_early = self._logged_s is not None and now_s - self._logged_s < _BETWEEN_LINES_S
        if not new or too_early:
            return ""
        self._logged, self._logged_s = self.count, now_s
        return self.last if new == 1 else f"{new} times, the last: {self.last}"


class _Timers(Protocol):
    """The clock and timers of an event loop."""

    def time(self) -> float:
        """Return seconds since an arbitrary fixed moment."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call `callback` after `delay` seconds."""


class LoopLag:
    """Measures the delay of an event loop by regular ticks. All methods run on the loop's thread.

    Args:
        on_tick: Called at each tick.
        executing: Returns a description of the models that executed in the last seconds.
    """

    def __init__(self, on_tick: Callable[[], None], executing: Callable[[float], str]) -> None:
        self._on_tick = on_tick
        self._executing = executing
        self._loop: _Timers | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._sum_s = 0.0
        self._ticks = 0
        self._greatest_s = [0.0, 0.0]  # of the current and the previous window
        self._window_s = 0.0  # the end of the current window
        self._pending_s = 0.0
        self._pending_executions = ""
        self._logged_s: float | None = None

    def start(self, loop: _Timers) -> None:
        """Start measuring."""
        self._loop = loop
        now_s = loop.time()
        self._window_s = now_s + _WINDOW_S
        self._expect(loop, now_s)

    def stop(self) -> None:
        """Stop measuring."""
        if self._handle is not None:
            self._handle.cancel()

    def samples(self) -> dict[str, list[Sample]]:
        """Return the series by the names of their families."""
        shown = {_LAG_SUM: self._sum_s, _LAG_TICKS: self._ticks}
        greatest_s = max(self._greatest_s)
        return {
            head.name: [Sample((), value)]
            for head, value in (*shown.items(), (_LAG_GREATEST, greatest_s))
        }

    def _expect(self, loop: _Timers, now_s: float) -> None:
        self._due_s = now_s + _TICK_S
        self._handle = loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        loop = self._loop
        assert loop is not None
        now_s = loop.time()
        # A loop's clock is coarse: a timer can fire a little early.
        lag_s = max(0.0, now_s - self._due_s)
        self._ticks += 1
        self._sum_s += lag_s
        if now_s >= self._window_s:
            self._greatest_s = [0.0, self._greatest_s[0]]
            self._window_s = now_s + _WINDOW_S
        self._greatest_s[0] = max(self._greatest_s[0], lag_s)
        self._log_delay(lag_s, now_s)
        self._on_tick()
        self._expect(loop, now_s)

    def _log_delay(self, lag_s: float, now_s: float) -> None:
        if lag_s >= _LATE_S and lag_s > self._pending_s:
            executing = self._executing(lag_s)
            self._pending_executions = (
                f" Inline models that executed during this time: {executing}" if executing else ""
            )
            self._pending_s = lag_s
        if not self._pending_s:
            return
        if self._logged_s is None or now_s - self._logged_s >= _BETWEEN_LINES_S:
            log.warning(
                "The event loop was late by %.0f ms, and all requests waited: code on its thread, "
                "the interpreter lock or a busy processor blocked it.%s",
                self._pending_s * 1000,
                self._pending_executions,
            )
            self._pending_s, self._logged_s = 0.0, now_s
