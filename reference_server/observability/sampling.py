"""Which requests are traced: every n-th, and so many of them."""

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
    """What is recorded of a traced request."""

    OFF = 0
    TIMESTAMPS = 1
    TENSORS = 2


class Tracer(abc.ABC):
    """Picks the requests that are traced by one setting; each mode of tracing begins their traces.

    Every `rate`-th request is traced, `count` of them (-1: any number). `log_frequency` is for
    traces that go to files. Any thread.
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
        """How many more requests may be traced; -1 for any number."""
        return self._count

    @property
    def fault(self) -> str | None:
        """Why this setting can trace nothing; empty where no more than a count of 0 says so."""
        if self.level is TraceLevel.OFF:
            return "tracing is disabled"
        if self.rate == 0:
            return "sample rate must be non-zero"
        return self.fault_of_mode or ("" if self._count == 0 else None)

    @property
    def fault_of_mode(self) -> str:
        """Why nothing can be recorded; empty if it can."""
        return ""

    def sample(self, caller: SpanContext | None = None) -> RequestTrace | None:
        """The trace of the request that has come now, if it is its turn.

        One that a `caller`'s span has sent is traced out of turn, even where `count` are.
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
        return self._begun(caller)

    @abc.abstractmethod
    def _begun(self, caller: SpanContext | None) -> RequestTrace:
        """A new trace."""

    @abc.abstractmethod
    def retire(self) -> None:
        """Another setting has taken this one's place; traces that are not complete go on."""


class TraceMode(Protocol):
    """What becomes of traces.

    With `follows_callers` the trace of a request may be a part of its caller's.
    """

    follows_callers: bool

    def tracer(self, level: TraceLevel, rate: int, count: int, log_frequency: int) -> Tracer:
        """What traces by one setting."""

    def settings(self, log_frequency: int) -> Mapping[str, Sequence[str]]:
        """The settings of this mode, as clients are shown them."""

    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """What the metrics tell of this mode, by the family's name."""

    def close(self) -> None:
        """Let go of traces that wait to be written. Blocks."""
