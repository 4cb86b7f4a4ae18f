"""Selects the requests that are traced: every n-th one, up to a number."""

from __future__ import annotations

import abc
import enum
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from reference_server.core.request import RequestTrace
from reference_server.core.telemetry import Sample
from reference_server.observability.span_context import SpanContext


class TraceLevel(enum.IntFlag):
    """The data that is recorded for a traced request."""

    OFF = 0
    TIMESTAMPS = 1
    TENSORS = 2


class Tracer(abc.ABC):
    """Selects the requests that are traced with one setting. Thread-safe.

    Subclasses start the traces.

    Args:
        level: The data to record.
        rate: Every `rate`-th request is traced.
        count: The number of requests to trace; -1: no limit.
        log_frequency: The number of traces per file, for traces in files.
    """

    def __init__(self, level: TraceLevel, rate: int, count: int, log_frequency: int) -> None:
        self.level = level
        self.rate = rate
        self.log_frequency = log_frequency
        self._lock = threading.Lock()
        self._count = count
        self._seen = 0

    @property
    def remaining(self) -> int:
        """The number of further requests to trace; -1: no limit."""
        return self._count

    @property
    def fault(self) -> str | None:
        """The reason why this setting traces nothing; empty if only the count is exhausted."""
        if self.level is TraceLevel.OFF:
            return "tracing is disabled"
        if self.rate == 0:
            return "sample rate must be non-zero"
        return self.fault_of_mode or ("" if self._count == 0 else None)

    @property
    def fault_of_mode(self) -> str:
        """The reason why this mode cannot record traces; empty if it can."""
        return ""

    def sample(self, caller: SpanContext | None = None) -> RequestTrace | None:
        """Return the trace of a new request; None if it is not traced.

        Args:
            caller: The span that sent the request. Such a request is traced regardless of rate and
                count.
        """
        if self.level is TraceLevel.OFF:
            return None
        with self._lock:
            if self.fault or (self.fault is not None and caller is None):
                return None
            self._seen += 1
            is_due = self._seen % self.rate == 0
            if not is_due and caller is None:
                return None
            if is_due and self._count > 0:
                self._count -= 1
        return self._start(caller)

    @abc.abstractmethod
    def _start(self, caller: SpanContext | None) -> RequestTrace:
        """Return a new trace."""

    @abc.abstractmethod
    def retire(self) -> None:
        """Finish after another setting has replaced this one. Open traces continue."""


class TraceMode(Protocol):
    """The destination of traces: files or a collector.

    If `follows_callers`, the trace of a request can be part of its caller's trace.
    """

    follows_callers: bool

    def tracer(self, level: TraceLevel, rate: int, count: int, log_frequency: int) -> Tracer:
        """Return the tracer of one setting."""

    def settings(self, log_frequency: int) -> Mapping[str, Sequence[str]]:
        """Return the settings of this mode for clients."""

    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """Return the metrics of this mode by family name."""

    def close(self) -> None:
        """Write the remaining traces. Blocks."""
