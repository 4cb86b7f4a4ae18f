"""Business logic scripting (BLS): inference requests that a model sends to other models.

Tensors go by reference in both directions. The model that is called gets them protected, since the
calling model still has them: it is given a copy where it wants to write.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar

from reference_server.backends.python_host.api.arguments import UINT64, as_integer, as_text
from reference_server.backends.python_host.api.native import (
    MODULE,
    NotConstructible,
    TritonModelException,
)
from reference_server.backends.python_host.api.response import (
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
    """The trace of a request, to be handed to the requests that its model sends."""

    __slots__ = ("_trace",)
    __module__ = MODULE

    _trace: RequestTrace | None

    @classmethod
    def _of(cls, trace: RequestTrace | None) -> InferenceTrace:
        self = object.__new__(cls)
        self._trace = trace
        return self

    def get_context(self) -> str | None:
        """The headers that tell of the request's span, as JSON text; None without OpenTelemetry."""
        return None if self._trace is None else self._trace.context or None

    def record_span(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """Add a span below that of the request's execution; of this server alone.

        `start_ns` and `end_ns` are readings of `time.monotonic_ns`. Does nothing where
        `get_context` is None, and once the request is answered. Any thread.
        """
        if self._trace is not None:
            self._trace.record(name, start_ns, end_ns, attributes)


class BlsResponses:
    """The responses to one request, as they come; a ResponseSink. Any thread.

    All are kept, so that they can be read again. `listener` is called with each, on whatever thread
    brings it.
    """

    def __init__(self, listener: Callable[[], None] | None = None) -> None:
        self._responses: list[InferResponse] = []
        # Not a condition, which costs more than all else here: each who waits has a lock, and waits
        # until that is released.
        self._waiting: deque[threading.Lock] = deque()
        self._is_complete = False
        self._listener = listener

    @property
    def is_complete(self) -> bool:
        """Whether the last response is there."""
        return self._is_complete

    def send(self, response: InferResponse) -> None:
        """Take one response."""
        self._responses.append(response)
        self._is_complete = response.final
        while self._waiting:
            self._waiting.popleft().release()
        if self._listener is not None:
            self._listener()

    def get(self, index: int) -> InferResponse | None:
        """The response at `index`, once it is there; None if the last one comes before it."""
        while not self._has(index):
            came = threading.Lock()
            came.acquire()
            self._waiting.append(came)
            if self._has(index):  # it came before `send` could see that somebody waits
                break
            came.acquire()
        return self._responses[index] if index < len(self._responses) else None

    def _has(self, index: int) -> bool:
        return index < len(self._responses) or self._is_complete


_Iterator = TypeVar("_Iterator", bound="BareIterator")


class BareIterator(NotConstructible):
    """Gives the responses as they come: all that 2.51 has of it.

    A mark that nothing follows is a response without outputs. After its end it can be iterated
    again, from the first response. One thread at a time.
    """

    __slots__ = ("_cancellation", "_given", "_is_finished", "_next", "_responses")
    __module__ = MODULE

    _of_responses: ClassVar[type[BareResponse]] = BareResponse
    _responses: BlsResponses
    _cancellation: Cancellation
    _given: list[BareResponse]
    _next: int
    _is_finished: bool

    @classmethod
    def _of(cls: type[_Iterator], responses: BlsResponses, cancellation: Cancellation) -> _Iterator:
        self = object.__new__(cls)
        self._responses = responses
        self._cancellation = cancellation
        self._given = []
        self._next = 0
        self._is_finished = False
        return self

    def __iter__(self: _Iterator) -> _Iterator:
        if self._is_finished:
            self._next = 0
            self._is_finished = False
        return self

    def __next__(self) -> BareResponse:
        """The next response. Blocks until it is there; raises StopIteration after the last."""
        if self._next == len(self._given):
            response = self._responses.get(self._next)
            if response is None:
                self._is_finished = True
                raise StopIteration("Iteration is done for the responses.")
            self._given.append(self._of_responses._received(response))
        given = self._given[self._next]
        self._next += 1
        return given


class ResponseIterator(BareIterator):
    """The same, which can be cancelled."""

    __slots__ = ()
    __module__ = MODULE
    _of_responses = InferenceResponse

    def cancel(self) -> None:
        """Tell the model that nobody waits any more; nothing once its last response is there."""
        if not self._responses.is_complete:
            self._cancellation.cancel()


#: What `exec` gives: a response, or with `decoupled` an iterator of them.
BlsResult = BareResponse | BareIterator

# Models see one class of that name, and so do texts.
BareIterator.__name__ = BareIterator.__qualname__ = ResponseIterator.__name__


class BlsRequest(NamedTuple):
    """What a model sends to which model; may be sent repeatedly."""

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
        """The result, waiting for the first response.

        What keeps the request from being sent is an error response, as in Triton. Raises
        TritonModelException only outside `execute`.
        """
        server.check_stage()
        responses = BlsResponses()
        request = self.request(responses)
        refusal = self._send(server, request, decoupled=decoupled, halts=True)
        return self._result(server, request, responses, refusal, decoupled=decoupled)

    def async_exec(self, server: ServerAccess, *, decoupled: bool) -> asyncio.Future[BlsResult]:
        """The same, without waiting, on the running event loop. Raises RuntimeError without one."""
        loop = asyncio.get_running_loop()
        server.check_stage()
        future: asyncio.Future[BlsResult] = loop.create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(
                    self._result(server, request, responses, None, decoupled=decoupled)
                )

        def came() -> None:
            # Further responses come, too, and the model may have ended its loop meanwhile.
            if not future.done() and not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        responses = BlsResponses(came)
        request = self.request(responses)
        refusal = self._send(server, request, decoupled=decoupled, halts=False)
        if refusal is not None:
            future.set_result(
                self._result(server, request, responses, refusal, decoupled=decoupled)
            )
        return future

    def request(self, responses: BlsResponses) -> InferRequest:
        """The server's request, without inputs yet; the responses come to `responses`."""
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
        """Send `request`; returns why it is not sent."""
        calls = server.calls
        # The checks are in Triton's order: of several faults it is the first that is told.
        try:
            if not calls.is_ready(self.model_name, self.model_version):
                raise invalid_arg(
                    "Failed for execute the inference request. "
                    f"Model '{self.model_name}' is not ready."
                )
            if not decoupled and calls.is_decoupled(self.model_name, self.model_version):
                raise invalid_arg(_IS_DECOUPLED.format(self.model_name))
            if not all_sendable(self.parameters):
                raise invalid_arg("Unsupported value type on parameters")
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
            responses = _refused(request, refusal)
        iterator = ResponseIterator if server.has_newer_api else BareIterator
        first = responses.get(0)
        assert first is not None
        if not decoupled and not first.final:
            # A model that sent its response and then failed; Triton's caller waits for ever.
            error = responses.get(1)
            assert error is not None
            assert error.error is not None
            return iterator._of_responses._received(error)
        # Only now, as in Triton, which allocates the outputs when the called model gives them.
        if self.memory == MemoryType.TRITONSERVER_MEMORY_GPU and first.error is None:
            responses = _refused(request, internal(_NO_DEVICE))
            first = responses.get(0)
            assert first is not None
        if decoupled:
            return iterator._of(responses, request.cancellation)
        return iterator._of_responses._received(first)


def _refused(request: InferRequest, error: ServerError) -> BlsResponses:
    responses = BlsResponses()
    responses.send(
        InferResponse(request.model_name, request.model_version, request.id, error=error)
    )
    return responses


#: Of requests that are not sent: those that a model has made, which are sent as copies.
NO_RESPONSES = BlsResponses()

# ------------------------------------------------------------- the constructor's arguments

UNTRACED = InferenceTrace._of(None)


def checked_bls_request(request: BlsRequest) -> BlsRequest:
    """The request. Raises TritonModelException for an input that is None, or an unnamed output."""
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
    """A correlation id as C++ has it. Raises TritonModelException, or RuntimeError."""
    try:
        if isinstance(correlation_id, str):
            return as_text(correlation_id, "correlation_id")
        if isinstance(correlation_id, int):
            return as_integer(correlation_id, "correlation_id", UINT64)
    except TypeError as error:
        raise RuntimeError(str(error)) from None
    raise TritonModelException("Correlation ID must be integer or string")
