"""Runs one batch on one instance: counts it, and answers its requests."""

from __future__ import annotations

import logging

from reference_server.core.errors import Code, Contained, ServerError, internal
from reference_server.core.ports import Clock, OpenInstance, Recorder
from reference_server.core.request import answer, deliver
from reference_server.core.response import InferResponse, Timing
from reference_server.core.telemetry import FailureReason
from reference_server.scheduling.traced import TracedSink, traced_sink
from reference_server.scheduling.work import Batch, Refusal

log = logging.getLogger(__name__)

#: A defect of the recorder costs a count, and not the answers.
COUNTING = Contained("what became of a request was not counted")


class Executor:
    """Executes the batches of one model version. Any thread."""

    def __init__(
        self, model_name: str, model_version: int, recorder: Recorder, clock: Clock
    ) -> None:
        self._model = model_name, model_version
        self._recorder = recorder
        self._clock = clock

    def run(self, instance: OpenInstance, batch: Batch) -> Batch:
        """Execute `batch` on `instance`. Returns those requests that want to be executed again."""
        start = self._clock.monotonic_ns()
        traced: list[TracedSink] = []
        for request in batch:
            request.is_begun = True
            if request.trace is not None:
                traced.append(traced_sink(request, request.trace, start, self._clock))
        try:
            execution = instance.execute(batch)
        except ServerError as error:
            self._fail(batch, start, error)
            return []
        except Exception as error:  # a defect of a host must not leave clients waiting
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
        for request, response in zip(batch, execution.responses, strict=True):
            if response is not None:  # what is sent later, or has been, was not waited for
                response.timing = timing
                deliver(request.sink, response)
            elif request.timed is not None and timing is not None:
                with COUNTING:
                    request.timed(timing)
        return [batch[place] for place in execution.rescheduled]

    def refuse(self, refusal: Refusal) -> None:
        """Count and answer a request that waited, and will not run."""
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
        # Without the frames that it went through: these hold the batch, whoever keeps the answer.
        told = ServerError(error.code, error.message)
        for request in batch:
            deliver(request.sink, InferResponse(name, version, request.id, error=told))
