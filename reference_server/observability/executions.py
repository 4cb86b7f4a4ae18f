"""Watches the executions of inline models and logs long ones with their stack.

An inline model shares Python's interpreter lock with the server. While it holds the lock, nothing
can be logged. The event loop logs the executing models as soon as it gets the lock again.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from types import CodeType, FrameType

from reference_server.core.ports import Clock
from reference_server.core.telemetry import FamilyHead, MetricKind, Sample

log = logging.getLogger(__name__)

LONG = FamilyHead(
    "ge_server_long_executions_total",
    "Number of executions of inline models that took longer than --execution-warning-secs",
    MetricKind.COUNTER,
)
#: The number of innermost calls that are logged.
_MAX_FRAMES = 12
_NS_PER_S = 1_000_000_000


class Running:
    """The current execution of an instance. The instance's thread writes to it without a lock.

    `began_ns` and `ended_ns` are the times of the last execution. During an execution `ended_ns`
    is the smaller one. `reported_ns`, which the watch sets, is the start of the last execution that
    was logged.
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
        boundary: The code that calls the models. Only the frames below it are logged.
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

        The text includes the stacks of those that still execute. It is empty without such
        instances.
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
            for (model, version), count in self._counts.items()
        ]

    def _all(self) -> list[Running]:
        with self._lock:
            return list(self._instances)

    def _stack(self, thread: int) -> str:
        """Describe a thread's stack in the model's code, with the innermost call first."""
        frame: FrameType | None = sys._current_frames().get(thread)
        calls: list[str] = []
        while frame is not None and frame.f_code is not self._boundary:
            code = frame.f_code
            calls.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
            frame = frame.f_back
        if frame is None:
            return "no longer in the model's code"
        left_out = [f"{len(calls) - _MAX_FRAMES} more"] if len(calls) > _MAX_FRAMES else []
        return "at " + ", called by ".join([*calls[:_MAX_FRAMES], *left_out])
