"""Runs one batch on one instance: counts it, and answers its requests."""

from __future__ import annotations

import logging

from reference_server.core.clock import Clock
from reference_server.core.errors import Code, ServerError, internal
from reference_server.core.ports import ModelInstance, Recorder
from reference_server.core.request import InferRequest
from reference_server.core.response import InferResponse
from reference_server.core.statistics import FailureReason
from reference_server.scheduling.traced import TracedSink, traced_sinks
from reference_server.scheduling.work import Batch, Refusal

log = logging.getLogger(__name__)


class Executor:
    """Executes the batches of one model version. Any thread."""

    def __init__(
        self, model_name: str, model_version: int, recorder: Recorder, clock: Clock
    ) -> None:
        self._model = model_name, model_version
        self._recorder = recorder
        self._clock = clock

    def run(self, instance: ModelInstance, batch: Batch) -> Batch:
        """Execute `batch` on `instance`. Returns those requests that want to be executed again."""
        start = self._clock.monotonic_ns()
        traced = traced_sinks(batch, self._clock)
        for sink in traced:
            sink.began(start)
        for request in batch:
            request.is_begun = True
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
            self._recorder.failed(batch, start)
            return []
        timing = self._recorder.executed(batch, execution, start)
        for request, response in zip(batch, execution.responses, strict=True):
            if response is not None:  # what is sent later, or has been, was not waited for
                response.timing = timing
                _deliver(request, response)
        return [batch[place] for place in execution.rescheduled]

    def refuse(self, refusal: Refusal) -> None:
        """Count and answer a request that waited, and will not run."""
        request, error = refusal
        cancelled = error.code is Code.CANCELLED
        reason = FailureReason.CANCELED if cancelled else FailureReason.REJECTED
        self._recorder.refused(request, reason)
        if request.trace is not None and not isinstance(request.sink, TracedSink):
            request.trace.answered(())
        name, version = self._model
        _deliver(request, InferResponse(name, version, request.id, error=error))

    def _fail(self, batch: Batch, start_ns: int, error: ServerError) -> None:
        self._recorder.failed(batch, start_ns)
        name, version = self._model
        for request in batch:
            _deliver(request, InferResponse(name, version, request.id, error=error))


def _deliver(request: InferRequest, response: InferResponse) -> None:
    try:
        request.sink.send(response)
    except Exception:  # a defect of whoever takes it must not end the instance
        log.exception("the response to %s of %s was lost", request.label, request.model_name)
