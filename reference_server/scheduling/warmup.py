"""Running a model's samples on an instance before that is ready."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from reference_server.config.schema import WarmupSample
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.ports import Clock, ModelInstance, OpenInstance
from reference_server.core.request import InferRequest
from reference_server.core.response import Execution, InferResponse
from reference_server.core.rules import RequestRules
from reference_server.core.tensor import Tensor
from reference_server.scheduling import warmup_data
from reference_server.scheduling.execution import Executor

log = logging.getLogger(__name__)


class Warmup:
    """Executes a model's samples on an instance, through `executor`. Any thread.

    They are counted as any request is, and see neither the queue nor the response cache.
    `model_folder` is where the samples' files are.
    """

    def __init__(
        self,
        samples: Sequence[WarmupSample],
        signature: Signature,
        model_folder: Path,
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._samples = samples
        self._signature = signature
        self._folder = model_folder
        self._executor = executor
        self._clock = clock

    def __call__(self, instance: OpenInstance) -> None:
        """Run the samples on `instance`, which is open. Raises ServerError if one of them fails."""
        # All are made before the first one runs.
        inputs = [self._inputs(sample) for sample in self._samples]
        for sample, tensors in zip(self._samples, inputs, strict=True):
            for iteration in range(1, sample.count + 1):
                log.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    *(self._signature.name, instance.name, sample.name, iteration),
                )
                self._run(instance, sample, tensors)

    def _inputs(self, sample: WarmupSample) -> dict[str, Tensor]:
        log.debug("Generating warmup sample data for '%s'", sample.name)
        known = {entry.name for entry in self._signature.inputs}
        tensors: dict[str, Tensor] = {}
        where = f"warmup sample '{sample.name}' of model '{self._signature.name}'"
        told = where
        try:
            for given in sample.inputs:
                if given.name in known:  # Triton leaves the others out
                    told = f"{where}, input '{given.name}'"
                    tensors[given.name] = warmup_data.tensor(given, self._signature, self._folder)
            told = where
            self._request(tensors, _Answer())
        except ServerError as error:
            # Triton's texts do not say which it was.
            log.error("%s: %s", told, error.message)
            raise
        return tensors

    def _request(self, tensors: dict[str, Tensor], answer: _Answer) -> InferRequest:
        """A request over `tensors` that has passed the checks of any other. Raises ServerError."""
        now = self._clock.monotonic_ns()
        own = {name: tensor.renamed(name) for name, tensor in tensors.items()}
        request = InferRequest(self._signature.name, own, answer, received_ns=now, queued_ns=now)
        RequestRules(self._signature, reads_strings=True).admit(request)
        return request

    def _run(
        self, instance: OpenInstance, sample: WarmupSample, tensors: dict[str, Tensor]
    ) -> None:
        answers = [_Answer() for _ in range(sample.batch_size)]
        limit = self._signature.max_batch_size
        if sample.batch_size > max(1, limit):
            text = f"batch size {sample.batch_size} for '{instance.name}', max allowed is {limit}"
            raise _failed(sample, [text] * sample.batch_size)
        batch = [self._request(tensors, answer) for answer in answers]
        while batch:
            batch = self._executor.run(instance, batch)
        errors = [text for answer in answers for text in answer.errors()]
        if errors:
            raise _failed(sample, errors)


class WarmedInstance:
    """A model instance whose `open` also runs a warm-up."""

    def __init__(self, instance: ModelInstance, warm_up: Warmup) -> None:
        self._instance = instance
        self._warm_up = warm_up

    @property
    def name(self) -> str:
        """The instance's name."""
        return self._instance.name

    def open(self) -> None:
        """Open the instance and warm it up. Raises ServerError if a sample fails."""
        self._instance.open()
        try:
            self._warm_up(self._instance)
        except BaseException:
            self._instance.close()
            raise

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run one batch."""
        return self._instance.execute(requests)

    def close(self) -> None:
        """Close the instance."""
        self._instance.close()


def _failed(sample: WarmupSample, errors: Sequence[str]) -> Exception:
    texts = "".join(f"{text}; " for text in errors)
    return invalid_arg(f"failed to run warmup sample '{sample.name}': {texts}")


class _Answer:
    """Takes the responses to one request."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._final = threading.Event()

    def send(self, response: InferResponse) -> None:
        if response.error is not None:
            self._errors.append(response.error.message)
        if response.final:
            self._final.set()

    def errors(self) -> list[str]:
        """The texts of all that went wrong; waits for the last response."""
        self._final.wait()
        return self._errors
