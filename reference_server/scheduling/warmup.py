"""Warm-up: executes a model's samples on an instance before it is ready."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from reference_server.config.schema import WarmupData, WarmupInput, WarmupSample
from reference_server.core import byte_strings
from reference_server.core.errors import FieldPath, ServerError, internal, invalid_arg
from reference_server.core.metadata import Signature
from reference_server.core.paths import within
from reference_server.core.ports import Clock, ModelInstance, OpenInstance
from reference_server.core.request import Execution, InferRequest, InferResponse
from reference_server.core.rules import RequestRules
from reference_server.core.tensor import DataType, Tensor
from reference_server.scheduling.execution import BatchExecutor

#: The subfolder of a model's folder that contains the files of samples.
FOLDER = "warmup"
# The prefix of Triton's texts: warm-up requests have no id.
_LABEL = "[request id: <id_unknown>]"
_SEED = 0
log = logging.getLogger(__name__)


def _sample_tensor(given: WarmupInput, signature: Signature, model_folder: Path) -> Tensor:
    """Return one row of an input of a sample. Reads the input's file, if it names one.

    Raises ServerError if there is no data or too little.
    """
    if min(given.dims, default=0) < 0:
        raise invalid_arg(
            "warmup setting expects all variable-size dimensions are specified for input "
            f"'{given.name}'"
        )
    shape = (1, *given.dims) if signature.batches else given.dims
    data = memoryview(_data(given, math.prod(shape), model_folder))
    return Tensor(given.name, given.datatype, shape, raw=data)


def _data(given: WarmupInput, elements: int, model_folder: Path) -> bytes:
    """Return the wire form of `elements` elements."""
    if given.datatype is DataType.BYTES:
        if given.data is WarmupData.FILE:
            return _read(model_folder, given.file)
        # Random strings are empty as well.
        return byte_strings.serialize(np.full(elements, b"", dtype=np.object_))
    size = elements * (given.datatype.byte_size if given.datatype else 0)
    if given.data is WarmupData.ZEROS:
        return bytes(size)
    if given.data is WarmupData.RANDOM:
        random = np.random.default_rng(_SEED).bytes(size)
        # Bytes of BOOL must be 0 or 1.
        return bytes(byte & 1 for byte in random) if given.datatype is DataType.BOOL else random
    if given.data is WarmupData.FILE:
        data = _read(model_folder, given.file)
        if len(data) < size:
            raise invalid_arg(
                f"{_LABEL} warmup setting expects {size} bytes, but the data provided from "
                f"{given.file}only has {len(data)} bytes"
            )
        return data[:size]
    raise invalid_arg(
        f"{_LABEL} warmup setting expects input '{given.name}' to have input_data_type set"
    )


def _read(model_folder: Path, file: str) -> bytes:
    path = within(model_folder, model_folder / FOLDER / file, "model_warmup.input_data_file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error


def _known_inputs(sample: WarmupSample, signature: Signature) -> list[WarmupInput]:
    """Return the inputs of the sample that the model has; Triton ignores other inputs."""
    known = {entry.name for entry in signature.inputs}
    return [given for given in sample.inputs if given.name in known]


class Warmup:
    """Executes a model's samples on an instance. Thread-safe.

    Samples are counted in the statistics like other requests. They bypass the queue and the
    response cache.

    Args:
        samples: The samples of the configuration.
        signature: The model's inputs and outputs.
        model_folder: The model's folder, which contains the samples' files.
        executor: Executes the requests. None if the samples are only checked.
        clock: The source of the requests' times.
    """

    def __init__(
        self,
        samples: Sequence[WarmupSample],
        signature: Signature,
        model_folder: Path,
        executor: BatchExecutor | None,
        clock: Clock,
    ) -> None:
        self._samples = samples
        self._signature = signature
        self._folder = model_folder
        self._executor = executor
        self._clock = clock

    def __call__(self, instance: OpenInstance) -> None:
        """Run the samples on an open instance. Raises ServerError if one of them fails."""
        # Read all samples before the first sample runs.
        inputs = [self.inputs(sample) for sample in self._samples]
        for sample, tensors in zip(self._samples, inputs, strict=True):
            for iteration in range(1, sample.count + 1):
                log.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    *(self._signature.name, instance.name, sample.name, iteration),
                )
                self._run(instance, sample, tensors)

    def inputs(self, sample: WarmupSample) -> dict[str, Tensor]:
        """Return the checked inputs of a sample. Raises ServerError."""
        log.debug("Generating warmup sample data for '%s'", sample.name)
        label = sample_label = f"warmup sample '{sample.name}' of model '{self._signature.name}'"
        tensors: dict[str, Tensor] = {}
        place: FieldPath = ()
        try:
            for given in _known_inputs(sample, self._signature):
                label = f"{sample_label}, input '{given.name}'"
                place = ("inputs", given.name)
                tensors[given.name] = _sample_tensor(given, self._signature, self._folder)
            label, place = sample_label, ()
            self._request(tensors, _Answer())
        except ServerError as error:
            # Triton's texts name neither the sample nor the model.
            log.error("%s: %s", label, error.message)
            error.path = place
            raise
        return tensors

    def _request(self, tensors: dict[str, Tensor], answer: _Answer) -> InferRequest:
        """Return a request with `tensors` that has passed the usual checks. Raises ServerError."""
        now = self._clock.monotonic_ns()
        own = {name: tensor.renamed(name) for name, tensor in tensors.items()}
        request = InferRequest(self._signature.name, own, answer, received_ns=now, queued_ns=now)
        RequestRules(self._signature, reads_strings=True).admit(request)
        return request

    def check_batch_size(self, sample: WarmupSample, instance: str) -> None:
        """Raise ServerError if the model does not accept batches of the sample's size."""
        limit = self._signature.max_batch_size
        if sample.batch_size > max(1, limit):
            text = f"batch size {sample.batch_size} for '{instance}', max allowed is {limit}"
            error = _failed(sample, [text] * sample.batch_size)
            error.path = ("batch_size",)
            raise error

    def _run(
        self, instance: OpenInstance, sample: WarmupSample, tensors: dict[str, Tensor]
    ) -> None:
        assert self._executor is not None
        answers = [_Answer() for _ in range(sample.batch_size)]
        self.check_batch_size(sample, instance.name)
        batch = [self._request(tensors, answer) for answer in answers]
        while batch:
            batch = self._executor.run(instance, batch)
        errors = [text for answer in answers for text in answer.errors()]
        if errors:
            raise _failed(sample, errors)


def sample_faults(
    samples: Sequence[WarmupSample],
    signature: Signature,
    model_folder: Path,
    instance_names: Sequence[str],
    clock: Clock,
) -> Iterator[ServerError]:
    """Yield the errors of samples that would fail the load, without a model."""
    warm_up = Warmup(samples, signature, model_folder, None, clock)
    for index, sample in enumerate(samples):
        for check in (
            lambda sample=sample: warm_up.inputs(sample),
            lambda sample=sample: warm_up.check_batch_size(sample, instance_names[0]),
        ):
            try:
                check()
            except ServerError as error:
                error.path = ("model_warmup", index, *error.path)
                yield error


class WarmedInstance:
    """A model instance whose `open` also runs a warm-up."""

    def __init__(self, instance: ModelInstance, warm_up: Warmup) -> None:
        self._instance = instance
        self._warm_up = warm_up

    @property
    def name(self) -> str:
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
        return self._instance.execute(requests)

    def close(self) -> None:
        self._instance.close()


def _failed(sample: WarmupSample, errors: Sequence[str]) -> ServerError:
    texts = "".join(f"{text}; " for text in errors)
    return invalid_arg(f"failed to run warmup sample '{sample.name}': {texts}")


class _Answer:
    """A sink that collects the errors of one request."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._final = threading.Event()

    def send(self, response: InferResponse) -> None:
        if response.error is not None:
            self._errors.append(response.error.message)
        if response.final:
            self._final.set()

    def errors(self) -> list[str]:
        """Wait for the final response. Return the texts of all errors."""
        self._final.wait()
        return self._errors
