"""What operators are to see of a server in trouble: connections that ended badly, and a late loop.

Both are counted for the metrics page, and told to the log at most once a minute.
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

#: How far apart two lines of the log about the same thing are at least.
_BETWEEN_LINES_S = 60.0
#: How often the loop's lag is measured.
_TICK_S = 0.1
#: A loop that is later than this is told to the log.
_LATE_S = 0.1
#: Two of these are what a greatest lag is that of.
_WINDOW_S = 30.0

ENDED = FamilyHead(
    "ge_server_connections_ended_total",
    "Number of connections and calls that were refused, cut off or dropped, by reason",
    MetricKind.COUNTER,
)
_LAG_SUM = FamilyHead(
    "ge_server_loop_lag_seconds_total",
    "Sum of how late the event loop came to its ticks, of which there are ten in a second",
    MetricKind.COUNTER,
)
_LAG_TICKS = FamilyHead(
    "ge_server_loop_ticks_total",
    "Number of the event loop's ticks",
    MetricKind.COUNTER,
)
_LAG_GREATEST = FamilyHead(
    "ge_server_loop_lag_greatest_seconds",
    "How late the event loop came to a tick at most, in the last 30 to 60 seconds",
    MetricKind.GAUGE,
)
#: Of our own: no Triton has them.
OPERATORS_FAMILIES = (ENDED, LONG, _LAG_SUM, _LAG_TICKS, _LAG_GREATEST)


class Incidents:
    """Counts what happened to connections, by protocol and reason. Any thread.

    The log is told the first time, and then at most once a minute, with the number since. `clock`
    is in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], _Tally] = {}

    def of(self, protocol: str) -> Callable[[str, str], None]:
        """What is given the reason, a word, and the particulars of one incident."""
        return partial(self.happened, protocol)

    def happened(self, protocol: str, reason: str, particulars: str) -> None:
        """Count one; `particulars` stand in the log if this one is told."""
        now_s = self._clock()
        with self._lock:
            tally = self._found.setdefault((protocol, reason), _Tally())
            tally.count += 1
            tally.last = particulars
            line = tally.due(now_s)
        if line:
            self._tell(protocol, reason, line)

    def tell_rest(self) -> None:
        """Tell the log what has waited for its minute; to be called now and then."""
        now_s = self._clock()
        with self._lock:
            due = {key: tally.due(now_s) for key, tally in self._found.items()}
        for (protocol, reason), line in due.items():
            if line:
                self._tell(protocol, reason, line)

    def samples(self) -> list[Sample]:
        """The counters."""
        with self._lock:
            return [
                Sample((("protocol", protocol), ("reason", reason)), tally.count)
                for (protocol, reason), tally in self._found.items()
            ]

    def _tell(self, protocol: str, reason: str, line: str) -> None:
        log.info("%s connections ended, %s: %s", protocol, reason, line)


class _Tally:
    """How often one thing happened, and how much of that the log knows."""

    __slots__ = ("_told", "_told_s", "count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._told = 0
        self._told_s: float | None = None

    def due(self, now_s: float) -> str:
        """What is to be told now; nothing if there is nothing new, or it is too soon."""
        new = self.count - self._told
        too_soon = self._told_s is not None and now_s - self._told_s < _BETWEEN_LINES_S
        if not new or too_soon:
            return ""
        self._told, self._told_s = self.count, now_s
        return self.last if new == 1 else f"{new} times, the last: {self.last}"


class _Timers(Protocol):
    """The side of an event loop that has a clock."""

    def time(self) -> float:
        """Seconds since some fixed moment."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Have `callback` called so many seconds later."""


class LoopLag:
    """How late an event loop is, by a tick of its own. `start` and `stop` on the loop's thread.

    `now_and_then` is called with each tick, `executing` tells who executed in the last so many
    seconds. `samples` may be asked for on that thread alone.
    """

    def __init__(self, now_and_then: Callable[[], None], executing: Callable[[float], str]) -> None:
        self._now_and_then = now_and_then
        self._executing = executing
        self._loop: _Timers | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._sum_s = 0.0
        self._ticks = 0
        self._greatest_s = [0.0, 0.0]  # of this window, and of the one before
        self._window_s = 0.0  # when this window ends
        self._untold_s = 0.0
        self._untold_executions = ""
        self._told_s: float | None = None

    def start(self, loop: _Timers) -> None:
        """Begin to measure."""
        self._loop = loop
        now_s = loop.time()
        self._window_s = now_s + _WINDOW_S
        self._expect(loop, now_s)

    def stop(self) -> None:
        """Measure no more."""
        if self._handle is not None:
            self._handle.cancel()

    def samples(self) -> dict[str, list[Sample]]:
        """The series by the names of their families."""
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
        # A loop's clock is coarse: it may be called a little too soon.
        lag_s = max(0.0, now_s - self._due_s)
        self._ticks += 1
        self._sum_s += lag_s
        if now_s >= self._window_s:
            self._greatest_s = [0.0, self._greatest_s[0]]
            self._window_s = now_s + _WINDOW_S
        self._greatest_s[0] = max(self._greatest_s[0], lag_s)
        self._tell_late(lag_s, now_s)
        self._now_and_then()
        self._expect(loop, now_s)

    def _tell_late(self, lag_s: float, now_s: float) -> None:
        if lag_s >= _LATE_S and lag_s > self._untold_s:
            executing = self._executing(lag_s)
            self._untold_executions = (
                f" Inline models that executed meanwhile: {executing}" if executing else ""
            )
            self._untold_s = lag_s
        if not self._untold_s:
            return
        if self._told_s is None or now_s - self._told_s >= _BETWEEN_LINES_S:
            log.warning(
                "The event loop was late by %.0f ms: something held it, the interpreter lock or "
                "the processor, and all requests waited.%s",
                self._untold_s * 1000,
                self._untold_executions,
            )
            self._untold_s, self._told_s = 0.0, now_s
