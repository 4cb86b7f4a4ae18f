"""Reports long executions, connections that ended with an error, and delays of the event loop.

Connections and delays are counted in metrics and logged at most once a minute.

An inline model shares Python's interpreter lock with the server. While the model holds the lock,
the server cannot log. The event loop logs the executing models as soon as the loop gets the lock
again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType

from reference_server.core.ports import Clock
from reference_server.core.telemetry import FamilyHead, MetricKind, Sample

LONG = FamilyHead(
    "ge_server_long_executions_total",
    "Number of executions of inline models that took longer than --execution-warning-secs",
    MetricKind.COUNTER,
)
#: The number of innermost calls that are logged.
_MAX_FRAMES = 12
_NS_PER_S = 1_000_000_000


class Running:
    """The current execution of an instance. The instance's thread writes without a lock.

    `began_ns` is the start of the last execution. `ended_ns` is the end of the last execution that
    has ended, so it is smaller than `began_ns` during an execution. `reported_ns`, which the watch
    sets, is the start of the last execution that was logged.
    """

    __slots__ = (
        *("__weakref__", "began_ns", "ended_ns", "instance", "model", "thread", "reported_ns"),
        "version",
    )

    def __init__(self, instance: str, model: str = "", version: int = 1) -> None:
        self.instance = instance
        self.model = model
        self.version = version
        self.thread = 0
        self.began_ns = 0
        self.ended_ns = 0
        self.reported_ns = 0


class ExecutionWatch:
    """Logs each execution that exceeds a limit, once.

    Args:
        clock: The clock of the executions' times.
        limit_s: The limit in seconds; 0: no limit.
        boundary: The code that calls the models. Only the frames that it calls are logged.
    """

    def __init__(self, clock: Clock, limit_s: float, boundary: CodeType) -> None:
        self._clock = clock
        self._limit_ns = int(limit_s * _NS_PER_S)
        self._boundary = boundary
        self._lock = threading.Lock()
        self._instances: weakref.WeakSet[Running] = weakref.WeakSet()
        self._counts: dict[tuple[str, int], int] = {}

    def new(self, instance: str, model: str, version: int) -> Running:
        """Return the record of a new instance, which is watched until it is freed. Thread-safe."""
        running = Running(instance, model, version)
        with self._lock:
            self._instances.add(running)
        return running

    def look(self) -> None:
        """Log the executions that exceed the limit."""
        if not self._limit_ns:
            return
        now_ns = self._clock.monotonic_ns()
        for running in self._all():
            began_ns = running.began_ns
            too_long = now_ns - began_ns > self._limit_ns and running.ended_ns < began_ns
            if too_long and running.reported_ns != began_ns:
                running.reported_ns = began_ns
                key = running.model, running.version
                self._counts[key] = self._counts.get(key, 0) + 1
                log.warning(
                    "'%s' has been executing for %.1f s: %s",
                    running.instance,
                    (now_ns - began_ns) / _NS_PER_S,
                    self._stack(running.thread),
                )

    def executing_since(self, since_s: float) -> str:
        """Describe the instances that executed for most of the last `since_s` seconds.

        The text includes the stacks of instances that still execute. Without any such instance it
        is empty.
        """
        now_ns = self._clock.monotonic_ns()
        since_ns = now_ns - int(since_s * _NS_PER_S)
        found = []
        for running in self._all():
            executes = running.ended_ns < running.began_ns
            ended_ns = now_ns if executes else running.ended_ns
            if 2 * (ended_ns - max(running.began_ns, since_ns)) > now_ns - since_ns:
                where = f", {self._stack(running.thread)}" if executes else ""
                found.append(f"'{running.instance}'{where}")
        return "; ".join(found)

    def samples(self) -> list[Sample]:
        """Return the counters by model and version."""
        return [
            Sample((("model", model), ("version", str(version))), count)
            for (model, version), count in list(self._counts.items())  # may grow on another thread
        ]

    def _all(self) -> list[Running]:
        with self._lock:
            return list(self._instances)

    def _stack(self, thread: int) -> str:
        """Describe a thread's stack in the model's code, with the innermost call first."""
        frame = self._frames().get(thread)
        calls: list[str] = []
        while frame is not None and frame.f_code is not self._boundary:
            code = frame.f_code
            calls.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
            frame = frame.f_back
        if frame is None:
            return "no longer in the model's code"
        left_out = [f"{len(calls) - _MAX_FRAMES} more"] if len(calls) > _MAX_FRAMES else []
        return "at " + ", called by ".join([*calls[:_MAX_FRAMES], *left_out])

    def _frames(self) -> dict[int, FrameType | None]:
        """Return the innermost frame of each thread, with garbage collection off.

        Before CPython 3.11.8 and 3.12.1, `sys._current_frames` can start a collection while it
        holds the lock of all thread states. If a finalizer lets another thread run, and that thread
        starts or ends a thread, the process hangs for ever (CPython issue 106883).
        """
        with self._lock:  # two callers would restore each other's state
            collects = gc.isenabled()
            gc.disable()
            try:
                return dict(sys._current_frames())
            finally:
                if collects:
                    gc.enable()


log = logging.getLogger(__name__)

#: The shortest time between two log lines about incidents of one protocol and reason.
_BETWEEN_LINES_S = 60.0
#: The interval of the measurements of the event loop's delay.
_TICK_S = 0.1
#: Delays from this value on are logged.
_LATE_S = 0.1
#: The length of a window. The greatest delay is measured over the current and the previous window.
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

    The first incident of a protocol and reason is logged at once. Later incidents are logged with
    their number, at most once a minute. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def of(self, protocol: str) -> Callable[[str, str], None]:
        """Return a function that counts an incident of a protocol by its reason and details."""
        return partial(self.count, protocol)

    def count(self, protocol: str, reason: str, details: str) -> None:
        """Count an incident. `details` are logged if this incident is logged."""
        now_s = self._clock()
        with self._lock:
            tally = self._tallies.setdefault((protocol, reason), _Tally())
            tally.count += 1
            tally.last = details
            line = tally.due(now_s)
        if line:
            self._log(protocol, reason, line)

    def log_pending(self) -> None:
        """Log the incidents that have waited for a minute. Must be called regularly."""
        now_s = self._clock()
        with self._lock:
            due = {key: tally.due(now_s) for key, tally in self._tallies.items()}
        for (protocol, reason), line in due.items():
            if line:
                self._log(protocol, reason, line)

    def samples(self) -> list[Sample]:
        """Return the counters."""
        with self._lock:
            return [
                Sample((("protocol", protocol), ("reason", reason)), tally.count)
                for (protocol, reason), tally in self._tallies.items()
            ]

    def _log(self, protocol: str, reason: str, line: str) -> None:
        log.info("%s connections ended, %s: %s", protocol, reason, line)


class _Tally:
    """The number of incidents of one protocol and reason, and how many of them are logged."""

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


class LoopLag:
    """Measures the delay of an event loop by regular ticks. All methods run on the loop's thread.

    Args:
        on_tick: Called at each tick.
        executing: Returns a description of the models that executed in the last seconds.
    """

    def __init__(self, on_tick: Callable[[], None], executing: Callable[[float], str]) -> None:
        self._on_tick = on_tick
        self._executing = executing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._sum_s = 0.0
        self._ticks = 0
        self._greatest_s = [0.0, 0.0]  # of the current and the previous window
        self._window_s = 0.0  # the end of the current window
        self._pending_s = 0.0
        self._pending_executions = ""
        self._logged_s: float | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
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

    def _expect(self, loop: asyncio.AbstractEventLoop, now_s: float) -> None:
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
