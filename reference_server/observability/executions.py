"""What inline models are executing: those that take long are named in the log with their stack.

An inline model shares Python's interpreter lock with the server. While it keeps the lock nobody can
tell anything; as soon as the event loop has it again, it tells which models were executing.
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
#: The innermost calls of a stack that are told.
_MOST_FRAMES = 12
_NS_PER_S = 1_000_000_000


class Running:
    """What an instance executes. Its thread writes here, which costs it no lock.

    `began_ns` and `ended_ns` are of the last execution; while it goes on the second is the smaller.
    `told_ns` is the watch's own: the beginning of the last execution that was told.
    """

    __slots__ = (
        *("__weakref__", "began_ns", "ended_ns", "instance", "model", "thread", "told_ns"),
        "version",
    )

    def __init__(self, instance: str, model: str = "", version: int = 1) -> None:
        self.instance = instance
        self.model = model
        self.version = version
        self.thread = 0
        self.began_ns = 0
        self.ended_ns = 0
        self.told_ns = 0


class ExecutionWatch:
    """Looks at all instances now and then. An execution beyond `limit_s` is told once; 0: none is.

    `boundary` is the code that calls the models: what it was called by is not theirs, nor told.
    """

    def __init__(self, clock: Clock, limit_s: float, boundary: CodeType) -> None:
        self._clock = clock
        self._limit_ns = int(limit_s * _NS_PER_S)
        self._boundary = boundary
        self._lock = threading.Lock()
        self._instances: weakref.WeakSet[Running] = weakref.WeakSet()
        self._counts: dict[tuple[str, int], int] = {}

    def new(self, instance: str, model: str, version: int) -> Running:
        """What an instance is to write in. It is watched as long as somebody has it. Any thread."""
        running = Running(instance, model, version)
        with self._lock:
            self._instances.add(running)
        return running

    def look(self) -> None:
        """Tell the log of executions that have taken too long by now."""
        if not self._limit_ns:
            return
        now_ns = self._clock.monotonic_ns()
        for running in self._all():
            began_ns = running.began_ns
            too_long = now_ns - began_ns > self._limit_ns and running.ended_ns < began_ns
            if too_long and running.told_ns != began_ns:
                running.told_ns = began_ns
                key = running.model, running.version
                self._counts[key] = self._counts.get(key, 0) + 1
                log.warning(
                    "'%s' has been executing for %.1f s: %s",
                    running.instance,
                    (now_ns - began_ns) / _NS_PER_S,
                    self._stack(running.thread),
                )

    def executing_since(self, since_s: float) -> str:
        """Who executed for most of the last `since_s` seconds, and where those are that still do.

        Empty if nobody did.
        """
        now_ns = self._clock.monotonic_ns()
        since_ns = now_ns - int(since_s * _NS_PER_S)
        found = []
        for running in self._all():
            goes_on = running.ended_ns < running.began_ns
            ended_ns = now_ns if goes_on else running.ended_ns
            if 2 * (ended_ns - max(running.began_ns, since_ns)) > now_ns - since_ns:
                where = f", {self._stack(running.thread)}" if goes_on else ""
                found.append(f"'{running.instance}'{where}")
        return "; ".join(found)

    def samples(self) -> list[Sample]:
        """The counters, by model and version."""
        return [
            Sample((("model", model), ("version", str(version))), count)
            for (model, version), count in self._counts.items()
        ]

    def _all(self) -> list[Running]:
        with self._lock:
            return list(self._instances)

    def _stack(self, thread: int) -> str:
        """Where a thread is in the model's code, the innermost call first."""
        frame: FrameType | None = sys._current_frames().get(thread)
        calls: list[str] = []
        while frame is not None and frame.f_code is not self._boundary:
            code = frame.f_code
            calls.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
            frame = frame.f_back
        if frame is None:
            return "not in its code any more"
        left_out = [f"{len(calls) - _MOST_FRAMES} more"] if len(calls) > _MOST_FRAMES else []
        return "at " + ", called by ".join([*calls[:_MOST_FRAMES], *left_out])
