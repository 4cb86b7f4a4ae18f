"""Execution of one batch on one instance: tracing, statistics and responses."""

from __future__ import annotations

import logging

from reference_server.core.errors import Code, Contained, ServerError, internal
from reference_server.core.ports import Clock, OpenInstance, Recorder
from reference_server.core.request import (
    TRACING,
    InferRequest,
    InferResponse,
    RequestTrace,
    Timing,
    answer,
    deliver,
)
from reference_server.core.telemetry import FailureReason
from reference_server.core.tensor import Tensor
from reference_server.scheduling.work_queue import Batch, Refusal

log = logging.getLogger(__name__)

#: An error while statistics are updated must not lose the responses.
COUNTING = Contained("the result of a request was not counted")


class BatchExecutor:
    """Executes the batches of one model version. Thread-safe."""

    def __init__(
        self, model_name: str, model_version: int, recorder: Recorder, clock: Clock
    ) -> None:
        self._model = model_name, model_version
        self._recorder = recorder
        self._clock = clock

    def run(self, instance: OpenInstance, batch: Batch) -> Batch:
        if not log.isEnabledFor(logging.DEBUG):
            return self._run(instance, batch)
        name = instance.name
        for request in batch:
            log.debug("%s Setting state from PENDING to EXECUTING", request.label)
        log.debug("model %s, instance %s, executing %d requests", self._model[0], name, len(batch))
        again = self._run(instance, batch)
        for request in batch:
            log.debug("%s Setting state from EXECUTING to RELEASED", request.label)
        log.debug(
            "TRITONBACKEND_ModelInstanceExecute: model instance name %s released %d requests",
            name,
            len(batch),
        )
        return again

    def _run(self, instance: OpenInstance, batch: Batch) -> Batch:
        start = self._clock.monotonic_ns()
        traced: list[TracedSink] = []
        for request in batch:
            request.is_started = True
            if request.trace is not None:
                traced.append(_traced_sink(request, request.trace, start, self._clock))
        try:
            execution = instance.execute(batch)
        except ServerError as error:
            self._fail(batch, start, error)
            return []
        except Exception as error:  # clients must get an answer even if a host has a defect
            log.exception("instance %s failed", instance.name)
            self._fail(batch, start, internal(f"{type(error).__name__}: {error}"))
            return []
        for sink in traced:
            sink.ended(execution.input_end_ns, execution.output_start_ns)
        if execution.failed:
            with COUNTING:
                self._recorder.failed(batch, start)
            return []
        timing: Timing | None = None
        with COUNTING:
            timing = self._recorder.executed(batch, execution, start)
        is_debug = log.isEnabledFor(logging.DEBUG)
        for request, response in zip(batch, execution.responses, strict=True):
            if response is not None:  # None: the model sends its responses itself
                response.timing = timing
                if is_debug:
                    _log_outputs(response)
                deliver(request.sink, response)
            elif request.timed is not None and timing is not None:
                with COUNTING:
                    request.timed(timing)
        return [batch[place] for place in execution.rescheduled]

    def refuse(self, refusal: Refusal) -> None:
        """Count and answer a waiting request that will not run."""
        request, error = refusal
        cancelled = error.code is Code.CANCELLED
        reason = FailureReason.CANCELED if cancelled else FailureReason.REJECTED
        with COUNTING:
            self._recorder.refused(request, reason)
        name, version = self._model
        response = InferResponse(name, version, request.id, error=error)
        if isinstance(request.sink, TracedSink):  # it has been executed before
            deliver(request.sink, response)
        else:
            answer(request, response)

    def _fail(self, batch: Batch, start_ns: int, error: ServerError) -> None:
        with COUNTING:
            self._recorder.failed(batch, start_ns)
        name, version = self._model
        # A new exception without a traceback: the frames of `error` keep the batch alive.
        reported = ServerError(error.code, error.message)
        for request in batch:
            deliver(request.sink, InferResponse(name, version, request.id, error=reported))


def _log_outputs(response: InferResponse) -> None:
    for tensor in response.outputs:
        shape = ",".join(map(str, tensor.shape))
        kind = tensor.datatype.value if tensor.datatype else "<invalid>"
        log.debug(
            "add response output: output: %s, type: %s, shape: [%s]", tensor.name, kind, shape
        )


class TracedSink:
    """A response sink that forwards each response and reports all responses to a trace at the end.

    `began` and `ended` record the executions. The last response may arrive before `ended`.
    Responses arrive one at a time.
    """

    def __init__(self, request: InferRequest, trace: RequestTrace, clock: Clock) -> None:
        self._sink = request.sink
        self._trace = trace
        self._clock = clock
        self._outputs: list[Tensor] = []
        self._start_ns = 0
        self._times: tuple[int, int, int] | None = None

    def began(self, start_ns: int) -> None:
        """Record that an instance starts to execute the request."""
        self._start_ns = start_ns
        self._times = None

    def ended(self, input_end_ns: int, output_start_ns: int) -> None:
        """Record the end of the execution; responses may follow."""
        self._times = self._start_ns, input_end_ns, output_start_ns

    def send(self, response: InferResponse) -> None:
        if response.error is None:
            self._outputs.extend(response.outputs)
        if response.final:
            with TRACING:
                self._trace.answered(self._outputs, self._times or self._times_now())
        self._sink.send(response)

    def _times_now(self) -> tuple[int, int, int]:
        """Return the times of an execution that has not ended."""
        return self._start_ns, self._start_ns, self._clock.monotonic_ns()


def _traced_sink(
    request: InferRequest, trace: RequestTrace, start_ns: int, clock: Clock
) -> TracedSink:
    """Wrap the sink of a traced request, once, and record the start of its execution."""
    sink = request.sink
    if not isinstance(sink, TracedSink):
        sink = request.sink = TracedSink(request, trace, clock)
    sink.began(start_ns)
    return sink
