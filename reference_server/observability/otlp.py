"""Sends spans to a collector: OTLP over HTTP as JSON, like Triton.

Adding a span never blocks. A separate thread sends the spans of a bounded queue. A span is counted
as lost if the queue is full or the collector refuses it.
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
_SERVER = 2  # SPAN_KIND_SERVER, which all spans of Triton have
_TIMEOUT_S = 10.0
#: The time limit for the last spans when the server ends.
_CLOSE_S = 5.0


@dataclass(slots=True)
class Span:
    """A span. All times, also those of `events`, are in nanoseconds since the epoch.

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
    """Sends spans to a collector. Thread-safe.

    `post` sends one request body, and raises OSError if the collector did not accept it.
    """

    def __init__(
        self, options: OpenTelemetryOptions, post: Callable[[bytes], None] | None = None
    ) -> None:
        self._url = options.url
        self._post = post or partial(_post, options.url)
        self._resource = _attributes({**_own_resource(), **options.resource})
        self._max_size = options.max_queue_size
        self._batch = min(options.max_export_batch_size, self._max_size)
        self._delay_s = options.schedule_delay_ms / 1000
        self._changed = threading.Condition()
        self._waiting: deque[Span] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._sent = self._lost = 0
        self._failing = False

    def add(self, span: Span) -> None:
        """Queue a span that has ended. Never blocks."""
        with self._changed:
            if len(self._waiting) >= self._max_size or self._closing:
                self._lost += 1
                return
            self._waiting.append(span)
            if self._thread is None:
                self._start()
            elif len(self._waiting) in (1, self._batch):
                self._changed.notify()

    def samples(self) -> list[Sample]:
        """Return the numbers of sent and lost spans."""
        with self._changed:
            counts = {"lost": self._lost, "sent": self._sent}
        return [Sample((("outcome", name),), count) for name, count in counts.items()]

    def close(self) -> None:
        """Send the queued spans. Blocks at most five seconds."""
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
        except RuntimeError:  # no more threads can be started; the next span tries again
            return
        self._thread = thread

    def _run(self) -> None:
        while batch := self._next():
            self._send(batch)

    def _next(self) -> list[Span]:
        """Wait for the next spans to send. Returns an empty list at the end."""
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
            if not self._failing:  # only the first of consecutive errors
                log.error("cannot send spans to '%s': %s", self._url, error)
            self._failing = True
            with self._changed:
                self._lost += len(batch)
            return
        self._failing = False
        with self._changed:
            self._sent += len(batch)


def _post(url: str, body: bytes) -> None:
    """Send one request body. Raises OSError.

    Each body uses a new connection. The collector could close a kept one between batches, and the
    next body would be lost.
    """
    # Imported here, because few servers have a collector and the import slows down the start.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json"}
    with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)) as client:
        try:
            client.request("POST", path, body, headers)
            reply = client.getresponse()
            reply.read()
        except HTTPException as error:
            raise OSError(str(error)) from error
    if not 200 <= reply.status < 300:
        raise OSError(f"found status {reply.status} {reply.reason}, expected 200 to 299")


def _own_resource() -> dict[str, Parameter]:
    return {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "reference-server",
        "telemetry.sdk.version": __version__,
        "service.name": "triton-inference-server",
    }


# -- OTLP's JSON: ids are hexadecimal, 64-bit numbers are strings


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
    """Return `value` as valid UTF-8 text.

    Ids can have lone surrogates, and models can record any object. An exception would end the
    thread.
    """
    return str(value).encode("utf-8", "replace").decode()
