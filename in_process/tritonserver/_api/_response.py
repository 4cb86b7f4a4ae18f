"""Models, their requests, and the responses.

The server's threads pass responses to a `_Stream`, which converts them at once and keeps them until
an iterator takes them. Responses also go to the queue of the request, if it has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference_server.codecs import management_json
from reference_server.core import request as core
from reference_server.core.errors import unavailable
from reference_server.core.ports import SystemClock
from reference_server.core.tensor import DATATYPES
from reference_server.core.tensor import Tensor as CoreTensor
from tritonserver._api._engine import Engine
from tritonserver._api._tensor import DeviceOrMemoryType, Tensor, from_memory
from tritonserver._c import (
    DataType,
    InternalError,
    InvalidArgumentError,
    ModelBatchFlag,
    ModelTxnPropertyFlag,
    TritonError,
    check_type,
    check_unsigned,
    error_of,
    raising,
)

log = logging.getLogger(f"reference_server.{__name__}")  # part of the server's log

_CLOCK = SystemClock()
_CONFIG_VERSION = 1
_MAX_INT64 = 2**63


class Model:
    """A model of a server, by its name and version. Thread-safe.

    Attributes:
        name: the model's name.
        version: the version; -1 is the latest loaded version.
        state: the state when `Server.models` was called, such as READY; otherwise None.
        reason: the reason of that state, or None.
    """

    def __init__(
        self,
        server: Any,  # noqa: ANN401 - a Server, which a higher module defines
        name: str,
        version: int = -1,
        state: str | None = None,
        reason: str | None = None,
    ) -> None:
        self._engine: Engine = server._engine
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def __repr__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

    def create_request(self, **kwargs: Any) -> InferenceRequest:  # noqa: ANN401 - fields
        """Return a request to this model. `kwargs` are fields of `InferenceRequest`."""
        return InferenceRequest(**{**kwargs, "model": self})

    def infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,
        **kwargs: Any,  # noqa: ANN401 - fields
    ) -> ResponseIterator:
        """Send a request, and return an iterator over its responses.

        Args:
            inference_request: the request; by default it is made from `kwargs`.
            raise_on_error: raise the error of a response, instead of returning the response.
            **kwargs: fields of `InferenceRequest`.

        Returns:
            The iterator. The last response is final; for a decoupled model, it is mostly empty.

        Raises:
            TritonError: the request was refused.
            TypeError: a field has the wrong type.
        """
        request = self.create_request(**kwargs) if inference_request is None else inference_request
        stream = request._send(self, None)
        return ResponseIterator(stream, raise_on_error)

    def async_infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,
        **kwargs: Any,  # noqa: ANN401 - fields
    ) -> AsyncResponseIterator:
        """Send a request, and return an asynchronous iterator over its responses.

        It has the arguments of `infer`. With a `response_queue`, an event loop must be running.

        Raises:
            TritonError: the request was refused.
            TypeError: a field has the wrong type.
            RuntimeError: there is a queue and no running event loop.
        """
        request = self.create_request(**kwargs) if inference_request is None else inference_request
        loop = None if request.response_queue is None else asyncio.get_running_loop()
        return AsyncResponseIterator(request._send(self, loop), raise_on_error)

    def metadata(self) -> dict[str, Any]:
        """Return name, versions, platform, inputs and outputs. Raises TritonError."""
        with raising():
            metadata = self._engine.core.gateway.model_metadata(self.name, self.version)
        return decoded(management_json.model_metadata(metadata))

    def ready(self) -> bool:
        """Return True if the version is loaded and healthy. Raises UnavailableError."""
        with raising():
            probes = self._engine.core.gateway.model_ready(self.name, self.version)
        return probes is not None and all(probe() for probe in probes)

    def batch_properties(self) -> ModelBatchFlag:
        """Return whether the tensors have a batch dimension. Raises TritonError."""
        with raising():
            signature = self._engine.core.gateway.find(self.name, self.version).config.signature
        return ModelBatchFlag.FIRST_DIM if signature.batches else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Return whether the model is decoupled. Raises TritonError."""
        with raising():
            config = self._engine.core.gateway.find(self.name, self.version).config
        decoupled, one = ModelTxnPropertyFlag.DECOUPLED, ModelTxnPropertyFlag.ONE_TO_ONE
        return decoupled if config.decoupled else one

    def statistics(self) -> dict[str, Any]:
        """Return the counters, in the form of Triton's statistics extension. Raises TritonError."""
        with raising():
            snapshots = self._engine.core.gateway.statistics(self.name, self.version)
        return decoded(management_json.statistics(snapshots))

    def config(self, config_version: int = _CONFIG_VERSION) -> dict[str, Any]:
        """Return the completed configuration. Raises TritonError for another version than 1."""
        if config_version != _CONFIG_VERSION:
            raise InvalidArgumentError(
                f"model configuration version {config_version} not supported, supported versions "
                f"are: {_CONFIG_VERSION}"
            )
        with raising():
            return decoded(self._engine.core.gateway.model_config(self.name, self.version))


def decoded(document: str | bytes) -> dict[str, Any]:
    """Return a document of the server, which is a JSON object."""
    fields: dict[str, Any] = json.loads(document)
    return fields


@dataclass
class InferenceRequest:
    """A request to a model. It can be sent several times.

    Attributes:
        model: the model.
        request_id: the id that the responses repeat.
        flags: 1 starts a sequence, 2 ends it, 3 does both.
        correlation_id: the id of the sequence, a number or a string of up to 128 bytes.
        priority: the priority level; 0 is the model's default.
        timeout: the queue timeout in microseconds; 0: no timeout.
        inputs: tensors, arrays, lists or objects with DLPack, by input name. They are copied when
            the request is sent.
        parameters: parameters for the model: `str`, `int`, `float` or `bool`.
        output_memory_type: the device of the outputs, see `Tensor.to_device`.
        response_queue: receives all responses, too: a `queue.SimpleQueue` or `queue.Queue` for
            `Model.infer`, an `asyncio.Queue` for `Model.async_infer`.
    """

    model: Model
    request_id: str | None = None
    flags: int = 0
    correlation_id: int | str | None = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Tensor | Any] = field(default_factory=dict)
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: DeviceOrMemoryType | None = None
    response_queue: queue.SimpleQueue[Any] | asyncio.Queue[Any] | None = None

    def _send(self, model: Model, loop: asyncio.AbstractEventLoop | None) -> _Stream:
        """Send the request; see `Model.infer`. Responses reach an asyncio queue through `loop`."""
        running, gateway = model._engine.running, model._engine.core.gateway
        stream = _Stream(model, self, loop)
        request = self._core_request(stream)
        stream.cancellation = request.cancellation

        def submit() -> None:
            served = gateway.find(request.model_name, self.model.version)
            request.model_version = served.version
            served.infer(request)

        running.pending.add(stream)  # so that it ends with an error if the server stops
        with raising():
            running.on_loop(submit)
        return stream

    def _core_request(self, sink: core.ResponseSink) -> core.InferRequest:
        """Return the request in the server's form. Raises TritonError and TypeError."""
        if self.request_id is not None:
            check_type("request_id", self.request_id, str)
        correlation = self.correlation_id or 0
        if isinstance(correlation, str):
            with raising():
                core.string_id(correlation)
        else:
            check_unsigned("correlation_id", correlation, 64)
        return core.InferRequest(
            self.model.name,
            {name: _core_tensor(name, value) for name, value in self.inputs.items()},
            sink,
            id=self.request_id or "",
            parameters={name: _parameter(name, value) for name, value in self.parameters.items()},
            correlation_id=correlation,
            flags=core.SequenceFlag(check_unsigned("flags", self.flags, 32)),
            priority=check_unsigned("priority", self.priority, 64),
            timeout_us=check_unsigned("timeout", self.timeout, 64),
            received_ns=_CLOCK.monotonic_ns(),
        )


def _parameter(name: str, value: Any) -> core.Parameter:  # noqa: ANN401 - any object
    check_type("name of a parameter", name, str)
    if type(value) not in (str, int, float, bool):
        raise InvalidArgumentError(
            f"Unsupported Value. Can't convert {type(value)} to Request Parameter"
        )
    if type(value) is int and not -_MAX_INT64 <= value < _MAX_INT64:
        raise TypeError(f"parameter '{name}': found {value}; expected an integer of 64 bits")
    checked: core.Parameter = value
    return checked


def _core_tensor(name: str, value: Tensor | Any) -> CoreTensor:  # noqa: ANN401 - any object
    check_type("name of an input", name, str)
    tensor = value if isinstance(value, Tensor) else Tensor._from_object(value)
    shape = tuple(map(int, tensor.shape))
    # A copy, because models may change their inputs, and callers may reuse the memory.
    raw = tensor.bytes_view().copy().data
    return CoreTensor(name, DATATYPES.get(tensor.data_type.name), shape, raw=raw)


@dataclass
class InferenceResponse:
    """One response of a model.

    Attributes:
        model: the model, with the version that answered.
        request_id: the id of the request; empty if it has none.
        parameters: parameters that the model has set.
        outputs: tensors by output name, with memory of their own.
        error: the error, or None.
        classification_label: always None.
        final: True for the last response to a request.
    """

    model: Model
    request_id: str | None = None
    parameters: dict[str, core.Parameter] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False


class _Stream:
    """The sink of one request's responses; any number of futures may wait for them. Thread-safe.

    It has no reference to the server's request, which refers to it: a cycle would keep the inputs
    alive.
    """

    cancellation: core.Cancellation

    def __init__(
        self, model: Model, request: InferenceRequest, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self._model = model
        self._id = request.request_id or ""
        self._device = request.output_memory_type
        self._queue = request.response_queue
        self._loop = loop
        self._lock = threading.RLock()  # a signal handler may stop the server
        self._received: deque[InferenceResponse] = deque()
        self._waiting: deque[Future[InferenceResponse]] = deque()
        self._has_ended = False

    def send(self, response: core.InferResponse) -> None:
        """Receive a response of the server."""
        converted = self._converted(response)
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = response.final
            # Queued first, so that a reader of the iterator finds the response in the queue.
            self._enqueue(converted)
            self._received.append(converted)
            self._match()

    def _match(self) -> None:
        while self._received and self._waiting:
            future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(self._received.popleft())

    def abort(self) -> None:
        """End the request with an error, unless it has ended."""
        error = unavailable("Server stopped before the response")
        model = self._model
        self.send(core.InferResponse(model.name, model.version, self._id, error=error))

    def next_response(self) -> Future[InferenceResponse]:
        """Return a future of the next response."""
        self._model._engine.running.check_process()
        future: Future[InferenceResponse] = Future()
        with self._lock:
            self._waiting.append(future)
            self._match()
        return future

    def _enqueue(self, response: InferenceResponse) -> None:
        if self._queue is None:
            return
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its readers with it
                self._loop.call_soon_threadsafe(self._queue.put_nowait, response)
            return
        try:
            self._queue.put_nowait(response)
        except Exception:  # a full queue must not keep the response from the iterator
            log.exception("response_queue: a response was not accepted; expected free space")

    def _converted(self, response: core.InferResponse) -> InferenceResponse:
        model = Model(self._model, response.model_name, response.model_version)
        made = InferenceResponse(model, response.id, final=response.final)
        try:
            made.parameters = dict(response.parameters)
            if response.error is not None:
                made.error = error_of(response.error)
            elif not response.empty:
                made.outputs = {each.name: _tensor(each) for each in response.outputs}
        except Exception as error:
            made.error = InternalError(f"Unexpected error in creating response object: {error}")
        if self._device is not None:
            try:
                made.outputs = {
                    name: tensor.to_device(self._device) for name, tensor in made.outputs.items()
                }
            except TritonError as error:
                text = f"Memory type {self._device} not supported: {error}"
                made.outputs, made.error = {}, InvalidArgumentError(text)
        if made.error is not None:
            made.error.args += (made,)
        return made


def _tensor(tensor: CoreTensor) -> Tensor:
    """Return an output with memory of its own, since the model may still write to its array."""
    memory = np.array(tensor.raw(), np.uint8)
    kind = DataType.INVALID if tensor.datatype is None else DataType[tensor.datatype.value]
    # An array, as in Triton's package.
    return from_memory(kind, np.array(tensor.shape, np.int64), memory)  # type: ignore[arg-type]


class _Responses:
    """The responses to one request, in the order of their arrival."""

    def __init__(self, stream: _Stream, raise_on_error: bool) -> None:
        self._stream = stream
        self._raise_on_error = raise_on_error
        self._complete = False

    def _checked(self, response: InferenceResponse) -> InferenceResponse:
        self._complete = response.final
        if response.error is not None and self._raise_on_error:
            raise response.error
        return response

    def cancel(self) -> None:
        """Cancel the request. No effect after the last response."""
        self._stream.cancellation.cancel()


class ResponseIterator(_Responses, Iterator[InferenceResponse]):
    """The responses to one request. Use it from one thread at a time."""

    def __next__(self) -> InferenceResponse:
        """Wait for the next response, and return it. Raises TritonError, StopIteration."""
        if self._complete:
            raise StopIteration
        future = self._stream.next_response()
        try:
            response = future.result()
        except BaseException:  # Ctrl-C: the next call gets the response
            future.cancel()
            raise
        return self._checked(response)


class AsyncResponseIterator(_Responses, AsyncIterator[InferenceResponse]):
    """The responses to one request, for `async for` in any event loop, in one task at a time."""

    async def __anext__(self) -> InferenceResponse:
        """Wait for the next response, and return it. Raises TritonError, StopAsyncIteration."""
        if self._complete:
            raise StopAsyncIteration
        return self._checked(await asyncio.wrap_future(self._stream.next_response()))
