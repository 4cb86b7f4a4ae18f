"""Traces as OpenTelemetry's spans, in Triton's form.

    InferRequest            the frontend: received, answered, sent
      <model>               from the queue to the response, with the model's name and version
        compute             the execution
          ...               spans that the model records
        <model>             requests on its behalf: an ensemble's steps, a model's requests

Each span is sent when it ends, so inner spans are sent before outer ones.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence

from reference_server.core.ports import Clock
from reference_server.core.request import InferRequest, Parameter
from reference_server.core.telemetry import Sample
from reference_server.core.tensor import Tensor
from reference_server.observability.otlp import SPANS, Span, SpanExporter
from reference_server.observability.sampling import TraceLevel, Tracer
from reference_server.observability.span_context import SpanContext, new_trace
from reference_server.options import OpenTelemetryOptions

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
        """Return the tracer of one setting."""
        return SpanTracer(
            *(level, rate, count, log_frequency, self._exporter, self._ids, self._clock)
        )

    def settings(self, log_frequency: int) -> Mapping[str, Sequence[str]]:
        """Return the settings of this mode as they were given, then the defaults of others."""
        options = self._options
        shown: dict[str, list[str]] = {"trace_mode": ["opentelemetry"]}
        for name, value in options.given:
            shown.setdefault(name, []).append(value)
        shown.setdefault("bsp_max_export_batch_size", [str(options.max_export_batch_size)])
        shown.setdefault("bsp_schedule_delay", [str(options.schedule_delay_ms)])
        shown.setdefault("bsp_max_queue_size", [str(options.max_queue_size)])
        return shown

    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """Return the numbers of sent and lost spans."""
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
        """Return nanoseconds since the epoch of `ns` of the monotonic clock, by default now."""
        return self._epoch_ns + (self._clock.monotonic_ns() if ns is None else ns)


class SpanTrace:
    """The spans of one request, or of one that was sent on its behalf: a RequestTrace."""

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
        """The context of the model's span; as in Triton, empty before it starts."""
        return "" if self._model is None else self._model.context.carrier

    def record(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """Record a span below that of the execution. Ignored after the response was sent."""
        model = self._model
        if model is None:
            return
        if self._compute is None:
            self._compute = model.context.below()
        outer, moment = self._compute, self._recorder.moment
        ends = moment(start_ns), moment(end_ns)
        self._recorder.add(Span(name, outer.below(), outer.span_id, *ends, attributes))

    def child(self) -> SpanTrace:
        """Return the trace of a request that is sent on behalf of this one."""
        return SpanTrace(self._recorder, None, self)

    def stamp(self, name: str, ns: int | None = None) -> None:
        """Record an event of the frontend."""
        if self._request is not None and self._recorder.has_moments:
            self._request.events.append((name, self._recorder.moment(ns)))

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        """Start the model's span."""
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
        """End the model's span, and that of its execution, if there was one."""
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
