"""Selects the requests that are traced: every n-th request, up to a limit."""

from __future__ import annotations

import abc
import enum
import json
import re
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from reference_server.core.request import RequestTrace
from reference_server.core.telemetry import Sample


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
        self._received = 0

    @property
    def remaining(self) -> int:
        """The number of further requests to trace; -1: no limit."""
        return self._count

    @property
    def fault(self) -> str | None:
        """Why this setting traces nothing; empty: the count is exhausted; None: it traces."""
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
            self._received += 1
            is_due = self._received % self.rate == 0
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
        """Finish after another setting has replaced this setting. Open traces continue."""


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


# -- the ids of spans, and their headers as in W3C Trace Context

#: The version, trace id, span id and flags. As in Triton, no further field may follow, even if the
#: version is higher.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}",
    re.IGNORECASE,
)


class SpanContext(NamedTuple):
    """The ids of a span in lower-case hexadecimal digits, and its `tracestate`."""

    trace_id: str
    span_id: str
    trace_state: str = ""

    def below(self) -> SpanContext:
        """Return the context of a new span of the same trace."""
        return self._replace(span_id=secrets.token_hex(8))

    @property
    def carrier(self) -> str:
        """The headers that propagate this context, as JSON text, with the flag `sampled`."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}
        if self.trace_state:
            headers["tracestate"] = self.trace_state
        return json.dumps(headers, separators=(",", ":"))


def new_trace() -> SpanContext:
    """Return the context of the first span of a new trace."""
    return SpanContext(secrets.token_hex(16), secrets.token_hex(8))


def caller_of(fields: Iterable[tuple[bytes, bytes]]) -> SpanContext | None:
    """Return the context of the span in a request's headers; None without a valid header."""
    parent, state = b"", ""
    for name, value in fields:
        lower = name.lower()
        if lower == b"traceparent":
            parent = value.strip()
        elif lower == b"tracestate":
            state = value.decode("latin-1").strip()
    found = _TRACEPARENT.fullmatch(parent)
    if found is None:
        return None
    trace_id, span_id = (digits.decode().lower() for digits in found.groups())
    return SpanContext(trace_id, span_id, state)
