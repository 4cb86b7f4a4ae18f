"""Runs one batch on one instance: counts it, and answers its requests."""

from __future__ import annotations

import logging

from reference_server.core.clock import Clock
from reference_server.core.errors import ServerError, internal
from reference_server.core.ports import ModelInstance, Recorder
from reference_server.core.request import InferRequest
from reference_server.core.response import InferResponse
from reference_server.scheduling.work import Batch

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
        try:
            execution = instance.execute(batch)
        except ServerError as error:
            self._fail(batch, start, error)
            return []
        except Exception as error:  # a defect of a host must not leave clients waiting
            log.exception("instance %s failed", instance.name)
            self._fail(batch, start, internal(f"{type(error).__name__}: {error}"))
            return []
        timing = self._recorder.executed(batch, execution, start)
        times = start, execution.input_end_ns, execution.output_start_ns
        for request, response in zip(batch, execution.responses, strict=True):
            if response is None:
                continue
            response.timing = timing
            if request.trace is not None:
                request.trace.answered(() if response.error else response.outputs, times)
            _deliver(request, response)
        return [batch[place] for place in execution.rescheduled]

    def _fail(self, batch: Batch, start_ns: int, error: ServerError) -> None:
        self._recorder.failed(batch, start_ns)
        name, version = self._model
        for request in batch:
            if request.trace is not None:
                now = self._clock.monotonic_ns()
                request.trace.answered((), (start_ns, start_ns, now))
            _deliver(request, InferResponse(name, version, request.id, error=error))


def _deliver(request: InferRequest, response: InferResponse) -> None:
    try:
        request.sink.send(response)
    except Exception:  # a defect of whoever takes it must not end the instance
        log.exception("the response to %s of %s was lost", request.label, request.model_name)
