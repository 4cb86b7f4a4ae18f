"""`InferenceRequest`, which a model receives, or sends to another model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, overload

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
    INT64,
    MODULE,
    UINT32,
    UINT64,
    Native,
    TritonModelException,
    as_bool,
    as_instance,
    as_integer,
    as_list,
    as_text,
    refusal,
)
from reference_server.backends.python_host.api.response import (
    InferenceResponse,
    InferenceResponseSender,
    Parameters,
    ResponseSenders,
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

#: The default of required arguments, because they follow optional arguments. The checks of the
#: required arguments refuse None.
_REQUIRED: Any = None

_new = object.__new__
#: Guards the creation of senders, which a model's thread may request while `execute` ends.
_opening = threading.Lock()
_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class InferenceRequest(Native):
    """An inference request: received by `execute` in a batch, or created for another model.

    A model sends a request of its own with `exec` or `async_exec`.

    Args:
        request_id: The identifier of the request.
        correlation_id: The sequence of the request, an unsigned 64-bit integer or a string; 0
            means no sequence.
        inputs: The input tensors. Required.
        requested_output_names: The names of the outputs to return; an empty list means all.
            Required.
        model_name: The model that receives the request. Required.
        model_version: The version of that model; -1 means the latest.
        flags: `TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`, combined by `|`.
        timeout: The time limit in microseconds; 0 means none.
        preferred_memory: The memory for the outputs.
        trace: The `trace()` of the request on whose behalf this request is sent.
        parameters: The parameters of the request; the keys are strings.

    Raises:
        TypeError: An argument has another type, or a required argument is missing.
        TritonModelException: An argument has an invalid value.
        RuntimeError: The correlation id is out of range.
    """

    # `_request` is the server's request. `_inputs` holds its tensors once they have been read.
    # `_bls` is the content of a request that the model has created, else None.

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

    #: None outside of an instance; see `bound_request`.
    _instance: ClassVar[ServerAccess | None] = None
    _request: InferRequest
    _inputs: list[Tensor] | None
    _flags: int
    _release_flags: int
    _bls: BlsRequest | None
    _senders: ResponseSenders | _Unanswerable
    _sender: InferenceResponseSender | None  # None until the model requests it
    _is_answered: bool  # by the result or exception of `execute`

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
        # All TypeErrors are raised before the other errors, in the order of the arguments.
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
    def _received(cls, request: InferRequest, senders: ResponseSenders) -> InferenceRequest:
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
        """Return the input tensors in Triton's order: a new list of the same objects.

        Optional inputs that the client omitted are missing.
        """
        return self._read_inputs().copy()

    def _read_inputs(self) -> list[Tensor]:
        if self._inputs is None:
            self._inputs = [Tensor._received(tensor) for tensor in self._request.inputs.values()]
        return self._inputs

    def request_id(self) -> str:
        """Return the client's request id, or an empty string."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """Return the correlation id of the request's sequence; 0 means no sequence."""
        return self._request.correlation_id

    def requested_output_names(self) -> set[str]:
        """Return a new set of the requested outputs; all declared outputs if none is requested."""
        if not self._request.batch_size:  # an empty slot of a sequence batch
            return set()
        return set(self._request.requested_outputs or self._senders.output_names)

    def parameters(self) -> str:
        """Return the parameters as a JSON object, without parameters that the server consumes."""
        if self._bls is not None:
            return parameters_json(self._bls.parameters)
        return _compact_json(dict(self._request.parameters))

    def flags(self) -> int:
        """Return the sequence flags: START is bit 0, END is bit 1."""
        return int(self._flags)

    def set_flags(self, flags: int, /) -> None:
        """Set the flags that `flags` returns.

        Raises:
            TypeError: `flags` is not an unsigned 32-bit integer.
        """
        self._flags = as_integer(flags, "flags", UINT32)

    def set_release_flags(self, flags: int, /) -> None:
        """Set how the request is released after `execute`.

        Args:
            flags: `TRITONSERVER_REQUEST_RELEASE_ALL`, or `TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`
                to receive the request again.

        Raises:
            TypeError: `flags` is not an unsigned 32-bit integer.
        """
        self._release_flags = as_integer(flags, "flags", UINT32)

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the request's response sender; each call returns the same object.

        The sender of a request that `execute` has answered is closed.

        Raises:
            TritonModelException: The model itself has created the request.
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
        """Record that `execute` has answered; return the sender if the model has requested it."""
        with _opening:
            self._is_answered = True
            return self._sender

    def timeout(self) -> int:
        """Return the time limit in microseconds; 0 means none."""
        return self._request.timeout_us

    def is_cancelled(self) -> bool:
        """Return whether the request has been cancelled."""
        return self._request.cancellation.is_cancelled

    def trace(self) -> InferenceTrace:
        """Return the trace, to be passed to requests that are sent on this request's behalf."""
        return InferenceTrace._of(self._request.trace)

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...

    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...

    def exec(self, decoupled: bool = False) -> BlsResult:
        """Send the request and wait for its first response.

        Failures of the called model, or of sending, are returned as a response with an error.

        Args:
            decoupled: Whether to return an iterator of responses; required for a decoupled model.

        Returns:
            An InferenceResponse, or a ResponseIterator if `decoupled` is set.

        Raises:
            TritonModelException: The call is outside of `execute`.
            TypeError: `decoupled` is not a bool.
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
        """Send the request without waiting for a response.

        Args:
            decoupled: As in `exec`.

        Returns:
            A future of the result of `exec`, on the running event loop.

        Raises:
            RuntimeError: No event loop is running.
            TritonModelException: The call is outside of `execute`.
            TypeError: `decoupled` is not a bool.
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
    """Used in place of ResponseSenders by requests that the model itself has created."""

    output_names = frozenset[str]()

    def open(self, request: InferRequest) -> InferenceResponseSender:
        # No client waits for such responses.
        raise TritonModelException(
            "Unable to send response. Response sender has no reference to the decoupled state of "
            "the model."
        )


def bound_request(server: ServerAccess) -> type[InferenceRequest]:
    """Return the class `InferenceRequest` for the model of one instance."""

    # BoundRequest adds no fields, so that `isinstance` accepts objects of either class.
    class BoundRequest(InferenceRequest):
        __slots__ = ()
        __module__ = MODULE
        _instance = server

    BoundRequest.__name__ = BoundRequest.__qualname__ = InferenceRequest.__name__
    return BoundRequest


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return the first input of that name, or None.

    Args:
        inference_request: The request.
        name: The name of the input.
    """
    try:
        read_inputs = inference_request._read_inputs
    except AttributeError:  # another object: raise the AttributeError that Triton raises
        read_inputs = inference_request.inputs
    return first_named(read_inputs(), name)
