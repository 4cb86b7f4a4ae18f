"""Sends spans to a collector: OTLP over HTTP, as JSON, which is what Triton sends as well.

Adding a span never waits for the collector: a bounded queue lies between, and a thread of its own
empties it. A span that finds no room, or that the collector does not take, is counted as lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import orjson

from reference_server import __version__
from reference_server.core.request import Parameter
from reference_server.core.telemetry import FamilyHead, MetricKind, Sample
from reference_server.observability.span_context import SpanContext
from reference_server.options import OpenTelemetryOptions

log = logging.getLogger(__name__)

SPANS = FamilyHead(
    "ge_server_spans_total",
    "Number of spans for the OpenTelemetry collector, sent or lost",
    MetricKind.COUNTER,
)
_SCOPE = "triton-server"
_SERVER = 2  # SPAN_KIND_SERVER, of all spans in Triton
_TIMEOUT_S = 10.0
#: How long the end of the server may wait for the collector.
_CLOSE_S = 5.0


@dataclass(slots=True)
class Span:
    """Something that took time: both ends and all `events` in nanoseconds since the epoch.

    `parent_id` is empty for the first span of a trace.
    """

    name: str
    context: SpanContext
    parent_id: str
    start_ns: int
    end_ns: int = 0
    attributes: Mapping[str, Parameter] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)


class SpanExporter:
    """Sends what is added to it. Any thread.

    `post` sends one body, and raises OSError if the collector did not take it.
    """

    def __init__(
        self, options: OpenTelemetryOptions, post: Callable[[bytes], None] | None = None
    ) -> None:
        self._url = options.url
        self._post = post or partial(_post, options.url)
        self._resource = _attributes({**_own_resource(), **options.resource})
        self._most = options.max_queue_size
        self._batch = min(options.max_export_batch_size, self._most)
        self._delay_s = options.schedule_delay_ms / 1000
        self._changed = threading.Condition()
        self._waiting: deque[Span] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._sent = self._lost = 0
        self._failing = False

    def add(self, span: Span) -> None:
        """Queue a span that has ended. Never waits."""
        with self._changed:
            if len(self._waiting) >= self._most or self._closing:
                self._lost += 1
                return
            self._waiting.append(span)
            if self._thread is None:
                self._start()
            elif len(self._waiting) in (1, self._batch):
                self._changed.notify()

    def samples(self) -> list[Sample]:
        """How many spans were sent, and how many lost."""
        with self._changed:
            counts = {"lost": self._lost, "sent": self._sent}
        return [Sample((("outcome", name),), count) for name, count in counts.items()]

    def close(self) -> None:
        """Send what waits, if the collector takes it soon."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="spans", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left; the next span tries again
            return
        self._thread = thread

    def _run(self) -> None:
        while batch := self._next():
            self._send(batch)

    def _next(self) -> list[Span]:
        """The next spans to send; none in the end. Waits for them."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(
                lambda: len(self._waiting) >= self._batch or self._closing, self._delay_s
            )
            return [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]

    def _send(self, batch: list[Span]) -> None:
        try:
            self._post(_body(self._resource, batch))
        except OSError as error:
            if not self._failing:  # once, until it is well again
                log.error("cannot send spans to '%s': %s", self._url, error)
            self._failing = True
            with self._changed:
                self._lost += len(batch)
            return
        self._failing = False
        with self._changed:
            self._sent += len(batch)


def _post(url: str, body: bytes) -> None:
    """Send one body. Raises OSError.

    Each has a connection of its own: one that is kept between batches may be closed by then, and
    what is written to it is lost.
    """
    # Few servers have a collector, and all would wait for this import at their start.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json"}
    with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)) as sent_by:
        try:
            sent_by.request("POST", path, body, headers)
            reply = sent_by.getresponse()
            reply.read()
        except HTTPException as error:
            raise OSError(str(error)) from error
    if not 200 <= reply.status < 300:
        raise OSError(f"it answers {reply.status} {reply.reason}")


def _own_resource() -> dict[str, Parameter]:
    return {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "reference-server",
        "telemetry.sdk.version": __version__,
        "service.name": "triton-inference-server",
    }


# -- OTLP's JSON: ids in hexadecimal digits, 64-bit numbers as strings


def _body(resource: list[Any], spans: Iterable[Span]) -> bytes:
    scope = {"scope": {"name": _SCOPE}, "spans": [_encoded(span) for span in spans]}
    return orjson.dumps(
        {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]}
    )


def _encoded(span: Span) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        "name": _text(span.name),
        "kind": _SERVER,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
    }
    if span.context.trace_state:
        encoded["traceState"] = span.context.trace_state
    if span.parent_id:
        encoded["parentSpanId"] = span.parent_id
    if span.attributes:
        encoded["attributes"] = _attributes(span.attributes)
    if span.events:
        encoded["events"] = [{"name": name, "timeUnixNano": str(ns)} for name, ns in span.events]
    return encoded


def _attributes(values: Mapping[str, Parameter]) -> list[Any]:
    return [{"key": _text(key), "value": _value(value)} for key, value in values.items()]


def _value(value: Parameter) -> dict[str, Parameter]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": _text(value)}


def _text(value: object) -> str:
    """As text that can be sent: an id may have lone surrogates, and models record what they like.

    Nothing that is recorded may end the thread.
    """
    return str(value).encode("utf-8", "replace").decode()
