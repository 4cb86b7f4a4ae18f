"""Business logic scripting (BLS): inference requests that a model sends to other models.

Tensors are passed by reference in both directions. The called model receives them read-only, since
the calling model still holds them; `Tensor.as_numpy` copies a read-only array.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar, Union

from reference_server.backends.python_host.api.native import (
    MODULE,
    UINT64,
    NotConstructible,
    TritonModelException,
    as_integer,
    as_text,
)
from reference_server.backends.python_host.api.response import (
    NOT_SENDABLE,
    BareResponse,
    InferenceResponse,
    all_sendable,
)
from reference_server.backends.python_host.api.server_access import ServerAccess
from reference_server.backends.python_host.api.tensor import MemoryType, Tensor
from reference_server.core import tensor as core
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.request import (
    Cancellation,
    InferRequest,
    InferResponse,
    Parameter,
    RequestTrace,
    SequenceFlag,
)

_IS_DECOUPLED = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using "
    "the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
    "'async_exec' calls for decoupled models.'"
)
_NO_DEVICE = (
    "BackendMemory::Create, all allocation types failed:\n"
    "\tGPU: models of this server answer in the host's memory"
)


class InferenceTrace(NotConstructible):
    """The trace of a request, which a model passes to the requests that it sends."""

    __slots__ = ("_trace",)
    __module__ = MODULE

    _trace: RequestTrace | None

    @classmethod
    def _of(cls, trace: RequestTrace | None) -> InferenceTrace:
        self = object.__new__(cls)
        self._trace = trace
        return self

    def get_context(self) -> str | None:
        """Return the trace headers as JSON text, or None without OpenTelemetry."""
        return None if self._trace is None else self._trace.context or None

    def record_span(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """Add a child span to the span of the request's execution. Not part of Triton's API.

        Does nothing without OpenTelemetry, or when the request has been answered. Thread-safe.

        Args:
            name: The name of the span.
            start_ns: The start, from `time.monotonic_ns`.
            end_ns: The end, from `time.monotonic_ns`.
            attributes: The attributes of the span.
        """
        if self._trace is not None:
            self._trace.record(name, start_ns, end_ns, attributes)


class BlsResponses:
    """The responses to one request: a thread-safe ResponseSink that keeps all responses.

    `listener` is called after each response, on the thread that delivers it.
    """

    def __init__(self, listener: Callable[[], None] | None = None) -> None:
        self._responses: list[InferResponse] = []
        # One lock per waiting thread, released by `send`: a condition would cost more than the
        # rest of this class.
        self._waiting: deque[threading.Lock] = deque()
        self._is_complete = False
        self._listener = listener

    @property
    def is_complete(self) -> bool:
        """True once the last response has arrived."""
        return self._is_complete

    def send(self, response: InferResponse) -> None:
        self._responses.append(response)
        self._is_complete = response.final
        while self._waiting:
            self._waiting.popleft().release()
        if self._listener is not None:
            self._listener()

    def get(self, index: int) -> InferResponse | None:
        """Wait for the response at `index`; return None if the request has fewer responses."""
        while not self._has(index):
            arrived = threading.Lock()
            arrived.acquire()
            self._waiting.append(arrived)
            if self._has(index):  # the response arrived before `send` could see the lock
                break
            arrived.acquire()
        return self._responses[index] if index < len(self._responses) else None

    def _has(self, index: int) -> bool:
        return index < len(self._responses) or self._is_complete


_Iterator = TypeVar("_Iterator", bound="BareIterator")


class BareIterator(NotConstructible):
    """An iterator of the responses of a decoupled request, as in Triton 2.51.

    A final flag without a response is returned as a response without outputs. After the end, the
    iterator can be used again and starts with the first response. Not thread-safe.
    """

    __slots__ = ("_cancellation", "_is_finished", "_next", "_responses", "_returned")
    __module__ = MODULE

    _of_responses: ClassVar[type[BareResponse]] = BareResponse
    _responses: BlsResponses
    _cancellation: Cancellation
    _returned: list[BareResponse]
    _next: int
    _is_finished: bool

    @classmethod
    def _of(cls: type[_Iterator], responses: BlsResponses, cancellation: Cancellation) -> _Iterator:
        self = object.__new__(cls)
        self._responses = responses
        self._cancellation = cancellation
        self._returned = []
        self._next = 0
        self._is_finished = False
        return self

    def __iter__(self: _Iterator) -> _Iterator:
        if self._is_finished:
            self._next = 0
            self._is_finished = False
        return self

    def __next__(self) -> BareResponse:
        """Wait for the next response and return it.

        Raises:
            StopIteration: There are no more responses.
        """
        if self._next == len(self._returned):
            response = self._responses.get(self._next)
            if response is None:
                self._is_finished = True
                raise StopIteration("Iteration is done for the responses.")
            self._returned.append(self._of_responses._received(response))
        returned = self._returned[self._next]
        self._next += 1
        return returned


class ResponseIterator(BareIterator):
    """An iterator of the responses of a decoupled request, which can cancel the request."""

    __slots__ = ()
    __module__ = MODULE
    _of_responses = InferenceResponse

    def cancel(self) -> None:
        """Cancel the request; no-op if its last response has arrived."""
        if not self._responses.is_complete:
            self._cancellation.cancel()


#: The result of `exec`: a response, or an iterator of responses for `decoupled`.
BlsResult = Union[BareResponse, BareIterator]  # noqa: UP007 - for Python 3.9

# Models and error texts see one class with that name.
BareIterator.__name__ = BareIterator.__qualname__ = ResponseIterator.__name__


class BlsRequest(NamedTuple):
    """The content of a request to another model, which may be sent repeatedly."""

    model_name: str
    model_version: int
    request_id: str
    correlation_id: int | str
    inputs: Sequence[Tensor]
    requested_outputs: Sequence[str]
    flags: int
    timeout_us: int
    memory: MemoryType | None
    trace: RequestTrace | None
    parameters: dict[str, Parameter]

    def exec(self, server: ServerAccess, *, decoupled: bool) -> BlsResult:
        """Send the request, wait for the first response, and return the result.

        If the request cannot be sent, the result is an error response, as in Triton.

        Raises:
            TritonModelException: The call is outside of `execute`.
        """
        server.check_stage()
        responses = BlsResponses()
        request = self.request(responses)
        refusal = self._send(server, request, decoupled=decoupled, halts=True)
        return self._result(server, request, responses, refusal, decoupled=decoupled)

    def async_exec(self, server: ServerAccess, *, decoupled: bool) -> asyncio.Future[BlsResult]:
        """Send the request and return a future of the result, on the running event loop.

        Raises:
            RuntimeError: No event loop is running.
            TritonModelException: The call is outside of `execute`.
        """
        loop = asyncio.get_running_loop()
        server.check_stage()
        future: asyncio.Future[BlsResult] = loop.create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(
                    self._result(server, request, responses, None, decoupled=decoupled)
                )

        def arrived() -> None:
            # There may be further responses, and the model may have closed its loop.
            if not future.done() and not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        responses = BlsResponses(arrived)
        request = self.request(responses)
        refusal = self._send(server, request, decoupled=decoupled, halts=False)
        if refusal is not None:
            future.set_result(
                self._result(server, request, responses, refusal, decoupled=decoupled)
            )
        return future

    def request(self, responses: BlsResponses) -> InferRequest:
        """Return the server's request, without inputs yet, with `responses` as its sink."""
        return InferRequest(
            self.model_name,
            {},
            responses,
            model_version=self.model_version,
            id=self.request_id,
            requested_outputs=tuple(dict.fromkeys(self.requested_outputs)),
            parameters=self.parameters,
            correlation_id=self.correlation_id,
            flags=SequenceFlag(self.flags) if self.flags else SequenceFlag.NONE,
            timeout_us=self.timeout_us,
        )

    def _send(
        self, server: ServerAccess, request: InferRequest, *, decoupled: bool, halts: bool
    ) -> ServerError | None:
        """Send `request`; return the error if it cannot be sent."""
        calls = server.calls
        # The checks are in Triton's order, since only the first error is reported.
        try:
            if not calls.is_ready(self.model_name, self.model_version):
                raise invalid_arg(
                    "Failed for execute the inference request. "
                    f"Model '{self.model_name}' is not ready."
                )
            if not decoupled and calls.is_decoupled(self.model_name, self.model_version):
                raise invalid_arg(_IS_DECOUPLED.format(self.model_name))
            if not all_sendable(self.parameters):
                raise invalid_arg(NOT_SENDABLE)
            request.inputs = self._tensors(request)
            if self.trace is not None:
                request.trace = self.trace.child()
            calls.infer(request, server.halted() if halts else None)
        except ServerError as error:
            if request.trace is not None:
                request.trace.close()
            return internal(f"Model {self.model_name} - Error when running inference: {error}")
        return None

    def _tensors(self, request: InferRequest) -> dict[str, core.Tensor]:
        tensors: dict[str, core.Tensor] = {}
        for tensor in self.inputs:
            name = tensor.name()
            if name in tensors:
                raise invalid_arg(f"{request.label} input '{name}' already exists in request")
            tensors[name] = tensor._core.protected()
        return tensors

    def _result(
        self,
        server: ServerAccess,
        request: InferRequest,
        responses: BlsResponses,
        refusal: ServerError | None,
        *,
        decoupled: bool,
    ) -> BlsResult:
        if refusal is not None:
            responses = _error_responses(request, refusal)
        iterator = ResponseIterator if server.has_newer_api else BareIterator
        first = responses.get(0)
        assert first is not None
        if not decoupled and not first.final:
            # The model sent its response and then failed; Triton's caller waits for ever.
            error = responses.get(1)
            assert error is not None
            assert error.error is not None
            return iterator._of_responses._received(error)
        # Checked here because Triton allocates the outputs when the called model returns them.
        if self.memory == MemoryType.TRITONSERVER_MEMORY_GPU and first.error is None:
            responses = _error_responses(request, internal(_NO_DEVICE))
            first = responses.get(0)
            assert first is not None
        if decoupled:
            return iterator._of(responses, request.cancellation)
        return iterator._of_responses._received(first)


def _error_responses(request: InferRequest, error: ServerError) -> BlsResponses:
    responses = BlsResponses()
    responses.send(
        InferResponse(request.model_name, request.model_version, request.id, error=error)
    )
    return responses


#: The sink of a request that a model has created; a copy with another sink is sent.
NO_RESPONSES = BlsResponses()

# ------------------------------------------------------------- the constructor's arguments

UNTRACED = InferenceTrace._of(None)


def checked_bls_request(request: BlsRequest) -> BlsRequest:
    """Return `request`. Raises TritonModelException for a None input or an empty output name."""
    of = (
        f"for request with id '{request.request_id}' and model name '{request.model_name}' "
        "should not be empty."
    )
    if any(tensor is None for tensor in request.inputs):
        raise TritonModelException(f"Input tensor {of}")
    if "" in request.requested_outputs:
        raise TritonModelException(f"Requested output name {of}")
    return request


def checked_correlation(correlation_id: object) -> int | str:
    """Return a checked correlation id. Raises TritonModelException, or RuntimeError."""
    try:
        if isinstance(correlation_id, str):
            return as_text(correlation_id, "correlation_id")
        if isinstance(correlation_id, int):
            return as_integer(correlation_id, "correlation_id", UINT64)
    except TypeError as error:
        raise RuntimeError(str(error)) from None
    raise TritonModelException("Correlation ID must be integer or string")
