"""Traces as OpenTelemetry's spans, in Triton's form.

    InferRequest            the frontend: received, answered, sent
      <model>               from the queue to the response, with the model's name and version
        compute             the execution
          ...               spans that the model records
        <model>             requests on its behalf: an ensemble's steps, a model's requests

Each span is sent when it ends, so inner spans are sent before outer spans. Like Triton, the
exporter sends the spans to a collector, by OTLP over HTTP as JSON. Adding a span never blocks. A
separate thread sends the spans of a bounded queue. A span is counted as lost if the queue is full
or the collector refuses it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import orjson

from reference_server import __version__
from reference_server.core.ports import Clock
from reference_server.core.request import InferRequest, Parameter
from reference_server.core.telemetry import FamilyHead, MetricKind, Sample
from reference_server.core.tensor import Tensor
from reference_server.observability.sampling import SpanContext, TraceLevel, Tracer, new_trace
from reference_server.options import OpenTelemetryOptions

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
    """A span. All times, including the times of `events`, are in nanoseconds since the epoch.

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

    Each body uses a new connection. The collector could close a kept connection between batches,
    and the next body would be lost.
    """
    # Imported here, because few servers have a collector and the import slows down the start.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise OSError(str(error)) from error
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json"}
    with contextlib.closing(kind(parts.hostname or "", port, timeout=_TIMEOUT_S)) as client:
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


log = logging.getLogger(__name__)


class SpanMode:
    """The mode `opentelemetry`: traces consist of spans, which are sent to a collector."""

    follows_callers = True

    def __init__(self, options: OpenTelemetryOptions, exporter: SpanExporter, clock: Clock) -> None:
        self._options = options
        self._exporter = exporter
        self._ids = itertools.count(1)
        self._clock = clock

    def tracer(self, level: TraceLevel, rate: int, count: int, log_frequency: int) -> SpanTracer:
        return SpanTracer(
            *(level, rate, count, log_frequency, self._exporter, self._ids, self._clock)
        )

    def settings(self, log_frequency: int) -> Mapping[str, Sequence[str]]:
        """Return the settings as they were given, then the defaults of the other settings."""
        options = self._options
        shown: dict[str, list[str]] = {"trace_mode": ["opentelemetry"]}
        for name, value in options.given:
            shown.setdefault(name, []).append(value)
        shown.setdefault("bsp_max_export_batch_size", [str(options.max_export_batch_size)])
        shown.setdefault("bsp_schedule_delay", [str(options.schedule_delay_ms)])
        shown.setdefault("bsp_max_queue_size", [str(options.max_queue_size)])
        return shown

    def samples(self) -> Mapping[str, Sequence[Sample]]:
        return {SPANS.name: self._exporter.samples()}

    def close(self) -> None:
        """Send the queued spans. Blocks at most five seconds."""
        self._exporter.close()


class SpanTracer(Tracer):
    """Sends the traces of one setting to a collector."""

    def __init__(
        self,
        level: TraceLevel,
        rate: int,
        count: int,
        log_frequency: int,
        exporter: SpanExporter,
        ids: Iterator[int],
        clock: Clock,
    ) -> None:
        super().__init__(level, rate, count, log_frequency)
        self._exporter = exporter
        self._ids = ids
        self._clock = clock
        if level & TraceLevel.TENSORS:  # Triton logs this for each tensor
            log.error("Tensor level tracing is not supported by the mode: opentelemetry")

    def _start(self, caller: SpanContext | None) -> SpanTrace:
        moments = bool(self.level & TraceLevel.TIMESTAMPS)
        return SpanTrace(_Recorder(self._exporter, self._ids, self._clock, moments), caller)

    def retire(self) -> None:
        """Do nothing: each span is sent when it ends."""


class _Recorder:
    """The state shared by all traces of one request. Converts monotonic times to dates."""

    __slots__ = ("_clock", "_epoch_ns", "add", "has_moments", "next_id")

    def __init__(
        self, exporter: SpanExporter, ids: Iterator[int], clock: Clock, has_moments: bool
    ) -> None:
        self._clock = clock
        self._epoch_ns = clock.wall_ns() - clock.monotonic_ns()
        self.add = exporter.add
        self.next_id = ids.__next__
        self.has_moments = has_moments

    def moment(self, ns: int | None = None) -> int:
        """Convert a monotonic time, by default now, to nanoseconds since the epoch."""
        return self._epoch_ns + (self._clock.monotonic_ns() if ns is None else ns)


class SpanTrace:
    """The spans of a client's request, or of a request on its behalf: a RequestTrace."""

    __slots__ = (
        *("_compute", "_model", "_outer", "_outer_number", "_recorder", "_request", "number"),
    )

    def __init__(
        self,
        recorder: _Recorder,
        caller: SpanContext | None,
        behalf_of: SpanTrace | None = None,
    ) -> None:
        self._recorder = recorder
        self.number = recorder.next_id()
        self._outer_number = 0 if behalf_of is None else behalf_of.number
        self._model: Span | None = None
        self._compute: SpanContext | None = None  # set when a span is recorded below it
        self._request: Span | None = None
        if behalf_of is None:
            context = new_trace() if caller is None else caller.below()
            self._request = Span(
                "InferRequest", context, caller.span_id if caller else "", recorder.moment()
            )
            self._outer = context
        else:
            self._outer = behalf_of._innermost

    @property
    def _innermost(self) -> SpanContext:
        return self._outer if self._model is None else self._model.context

    @property
    def context(self) -> str:
        """The context of the model's span; as in Triton, empty before the span starts."""
        return "" if self._model is None else self._model.context.carrier

    def record(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """Record a span below the span of the execution. Ignored after the response was sent."""
        model = self._model
        if model is None:
            return
        if self._compute is None:
            self._compute = model.context.below()
        outer, moment = self._compute, self._recorder.moment
        ends = moment(start_ns), moment(end_ns)
        self._recorder.add(Span(name, outer.below(), outer.span_id, *ends, attributes))

    def child(self) -> SpanTrace:
        return SpanTrace(self._recorder, None, self)

    def stamp(self, name: str, ns: int | None = None) -> None:
        if self._request is not None and self._recorder.has_moments:
            self._request.events.append((name, self._recorder.moment(ns)))

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        if not self._recorder.has_moments:
            return
        attributes: dict[str, Parameter] = {
            "triton.model_name": model,
            "triton.model_version": version,
            "triton.trace_id": self.number,
            "triton.trace_parent_id": self._outer_number,
        }
        if request.id:
            attributes["triton.request_id"] = request.id
        outer, start_ns = self._outer, self._recorder.moment()
        span = Span(model, outer.below(), outer.span_id, start_ns, attributes=attributes)
        span.events = [("REQUEST_START", start_ns), ("QUEUE_START", self._recorder.moment())]
        self._model = span

    def answered(
        self, outputs: Sequence[Tensor], execution_ns: tuple[int, int, int] | None = None
    ) -> None:
        """End the model's span and, if there was an execution, the execution's span."""
        self.stamp("INFER_RESPONSE_COMPLETE")
        model, self._model = self._model, None
        if model is None:
            return
        if execution_ns is not None:
            self._end_compute(model, execution_ns)
        self._end(model, "REQUEST_END")

    def close(self) -> None:
        """End the request's span, which only requests of clients have."""
        if self._request is not None:
            self._end(self._request)

    def _end_compute(self, model: Span, execution_ns: tuple[int, int, int]) -> None:
        names = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START")
        events = list(zip(names, map(self._recorder.moment, execution_ns), strict=True))
        context = self._compute or model.context.below()
        span = Span("compute", context, model.context.span_id, events[0][1], events=events)
        self._end(span, "COMPUTE_END")

    def _end(self, span: Span, event: str = "") -> None:
        span.end_ns = self._recorder.moment()
        if event:
            span.events.append((event, span.end_ns))
        self._recorder.add(span)
