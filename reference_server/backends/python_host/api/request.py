"""`InferenceRequest`: one request, as a model receives it or sends it to another model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Literal, Protocol, overload

from reference_server.backends.python_host.api.arguments import (
    INT64,
    UINT32,
    UINT64,
    as_bool,
    as_instance,
    as_integer,
    as_list,
    as_text,
    refusal,
)
from reference_server.backends.python_host.api.bls import (
    NO_RESPONSES,
    UNTRACED,
    BlsRequest,
    BlsResult,
    InferenceTrace,
    ResponseIterator,
    checked_bls_request,
    checked_correlation,
)
from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    TritonModelException,
)
from reference_server.backends.python_host.api.response import (
    InferenceResponse,
    InferenceResponseSender,
    Parameters,
    checked_parameters,
    parameters_json,
)
from reference_server.backends.python_host.api.server_access import ServerAccess
from reference_server.backends.python_host.api.tensor import (
    NO_PREFERENCE,
    PreferredMemory,
    Tensor,
    as_tensors,
    first_named,
)
from reference_server.core.request import LATEST, InferRequest

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

#: The default of arguments that must be given although earlier ones need not: None is refused.
_REQUIRED: Any = None

_new = object.__new__
#: One for all: a model's thread may ask for the sender while `execute` ends.
_opening = threading.Lock()
_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class SenderFactory(Protocol):
    """What the requests of one instance have in common. Any thread."""

    @property
    def output_names(self) -> Collection[str]:
        """The outputs that the model declares."""

    def open(self, request: InferRequest) -> InferenceResponseSender:
        """A sender of responses to `request`, which has no other that is open."""


class InferenceRequest(Native):
    """One request of the batch that `execute` is given; each keeps its own shapes.

    Or one that a model makes, to call another with `exec` or `async_exec`: `inputs`,
    `requested_output_names` (none means all) and `model_name` must be given. `model_version` -1 is
    the latest, `timeout` are microseconds, `trace` is that of a request on whose behalf it is sent.
    Raises TypeError for arguments of other types, TritonModelException for other values.

    `_request` is the server's request, `_inputs` its tensors once somebody asked for them,
    `_bls` what a request of the model's own sends.
    """

    __slots__ = (
        "_bls",
        "_flags",
        "_inputs",
        "_is_answered",
        "_release_flags",
        "_request",
        "_sender",
        "_senders",
    )
    __module__ = MODULE

    #: None outside an instance; see `bound_request`.
    _instance: ClassVar[ServerAccess | None] = None
    _request: InferRequest
    _inputs: list[Tensor] | None
    _flags: int
    _release_flags: int
    _bls: BlsRequest | None
    _senders: SenderFactory
    _sender: InferenceResponseSender | None  # once somebody asked for it
    _is_answered: bool  # by what `execute` returned or raised

    def __init__(
        self,
        request_id: str | bytes = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = _REQUIRED,
        requested_output_names: Sequence[str | bytes] = _REQUIRED,
        model_name: str | bytes = _REQUIRED,
        model_version: int = LATEST,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = NO_PREFERENCE,
        trace: InferenceTrace = UNTRACED,
        parameters: Parameters | None = None,
    ) -> None:
        # All TypeErrors come before the other errors, in the order of the arguments.
        request_id = as_text(request_id, "request_id")
        if correlation_id is None:
            raise refusal("correlation_id", None, "int or str")
        tensors = as_tensors(inputs, "inputs")
        outputs = as_list(
            requested_output_names,
            "requested_output_names",
            lambda name: as_text(name, "requested_output_names"),
        )
        model_name = as_text(model_name, "model_name")
        model_version = as_integer(model_version, "model_version", INT64)
        flags = as_integer(flags, "flags", UINT32)
        timeout = as_integer(timeout, "timeout", UINT64)
        preferred_memory = as_instance(preferred_memory, "preferred_memory", PreferredMemory)
        trace = as_instance(trace, "trace", InferenceTrace)
        bls = checked_bls_request(
            BlsRequest(
                model_name,
                model_version,
                request_id,
                checked_correlation(correlation_id),
                tensors,
                outputs,
                flags,
                timeout,
                preferred_memory._memory_type,
                trace._trace,
                checked_parameters(parameters),
            )
        )
        self._bls = bls
        self._request = bls.request(NO_RESPONSES)
        self._request.trace = bls.trace
        self._inputs = list(bls.inputs)
        self._flags = bls.flags
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._senders = _Unanswerable()
        self._sender = None
        self._is_answered = False

    @classmethod
    def _received(cls, request: InferRequest, senders: SenderFactory) -> InferenceRequest:
        self = _new(cls)
        self._request = request
        self._inputs = None
        self._flags = request.flags
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._senders = senders
        self._sender = None
        self._is_answered = False
        self._bls = None
        return self

    def inputs(self) -> list[Tensor]:
        """The inputs in the order in which Triton has them: a new list of the same tensors.

        Optional inputs that the client left out are absent.
        """
        return self._given().copy()

    def _given(self) -> list[Tensor]:
        if self._inputs is None:
            self._inputs = [Tensor._received(tensor) for tensor in self._request.inputs.values()]
        return self._inputs

    def request_id(self) -> str:
        """The client's identifier, empty if it gave none."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """The sequence that the request belongs to, 0 if to none."""
        return self._request.correlation_id

    def requested_output_names(self) -> set[str]:
        """The outputs that the client wants, in a new set: all declared ones if it named none."""
        if not self._request.batch_size:  # nobody asks: it only fills a place
            return set()
        return set(self._request.requested_outputs or self._senders.output_names)

    def parameters(self) -> str:
        """The request's parameters as a JSON object, without those that the server consumes."""
        if self._bls is not None:
            return parameters_json(self._bls.parameters)
        return _compact_json(dict(self._request.parameters))

    def flags(self) -> int:
        """The sequence flags: START is bit 0, END is bit 1."""
        return int(self._flags)

    def set_flags(self, flags: int, /) -> None:
        """Replace the flags that this object shows."""
        self._flags = as_integer(flags, "flags", UINT32)

    def set_release_flags(self, flags: int, /) -> None:
        """Say what becomes of the request after `execute`: with RESCHEDULE it is given again."""
        self._release_flags = as_integer(flags, "flags", UINT32)

    def get_response_sender(self) -> InferenceResponseSender:
        """What sends responses to this request, instead of `execute`: each time the same object.

        Of a request that is answered already it is a closed one.
        """
        if self._sender is None:
            with _opening:
                if self._sender is None:
                    sender = self._senders.open(self._request)
                    if self._is_answered:
                        sender._close_silently()
                    self._sender = sender
        return self._sender

    def _mark_answered(self) -> InferenceResponseSender | None:
        """Note that `execute` has answered; the sender that somebody has got before, if any."""
        with _opening:
            self._is_answered = True
            return self._sender

    def timeout(self) -> int:
        """The client's time limit in microseconds, 0 if it set none."""
        return self._request.timeout_us

    def is_cancelled(self) -> bool:
        """Whether the client has given up."""
        return self._request.cancellation.is_cancelled

    def trace(self) -> InferenceTrace:
        """The request's trace, for requests that are sent on its behalf."""
        return InferenceTrace._of(self._request.trace)

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...

    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...

    def exec(self, decoupled: bool = False) -> BlsResult:
        """Send the request; blocks until its first response is there.

        Returns an InferenceResponse, or with `decoupled` a ResponseIterator. Whatever fails is an
        error in a response. Raises TritonModelException outside `execute`.
        """
        decoupled = as_bool(decoupled, "decoupled")
        bls, server = self._bls_request()
        return bls.exec(server, decoupled=decoupled)

    @overload
    def async_exec(
        self, decoupled: Literal[False] = False
    ) -> asyncio.Future[InferenceResponse]: ...

    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[ResponseIterator]: ...

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """Send the request without waiting: a future of what `exec` returns, on the running loop.

        Raises RuntimeError where no loop runs, and TritonModelException outside `execute`.
        """
        decoupled = as_bool(decoupled, "decoupled")
        bls, server = self._bls_request()
        return bls.async_exec(server, decoupled=decoupled)

    def _bls_request(self) -> tuple[BlsRequest, ServerAccess]:
        server = self._instance
        if server is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        bls = self._bls
        if bls is not None:
            return bls if bls.flags == self._flags else bls._replace(flags=self._flags), server
        request = self._request
        return BlsRequest(
            request.model_name,
            request.model_version,
            request.id,
            request.correlation_id,
            self.inputs(),
            request.requested_outputs,
            self._flags,
            request.timeout_us,
            None,
            None,
            dict(request.parameters),
        ), server


class _Unanswerable:
    """The senders of requests that the model has made itself."""

    output_names = frozenset[str]()

    def open(self, request: InferRequest) -> InferenceResponseSender:
        # Nobody waits for such a sender's responses.
        raise TritonModelException(
            "Unable to send response. Response sender has no reference to the decoupled state of "
            "the model."
        )


def bound_request(server: ServerAccess) -> type[InferenceRequest]:
    """`InferenceRequest` as the model of one instance sees it."""

    # Without fields of its own, so that `isinstance` and objects of either class go together.
    class BoundRequest(InferenceRequest):
        __slots__ = ()
        __module__ = MODULE
        _instance = server

    BoundRequest.__name__ = BoundRequest.__qualname__ = InferenceRequest.__name__
    return BoundRequest


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The first input of that name; None if there is none."""
    try:
        given = inference_request._given
    except AttributeError:  # what is no request is told by the method that models know
        given = inference_request.inputs
    return first_named(given(), name)
