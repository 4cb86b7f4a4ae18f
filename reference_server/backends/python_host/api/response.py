"""`InferenceResponse`, which `execute` returns, and the sender of responses that it does not.

There are two classes of that name: a model sees the one that its release has.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from reference_server.backends.python_host.api.arguments import UINT32, as_instance, as_integer
from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    NotConstructible,
    TritonError,
    TritonModelException,
)
from reference_server.backends.python_host.api.tensor import Tensor, as_tensors, first_named
from reference_server.core import forks
from reference_server.core.errors import ServerError
from reference_server.core.request import (
    InferRequest,
    InferResponse,
    Parameter,
    ResponseSink,
    deliver,
)

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

#: The parameters that a model may give to a request or a response of its own.
Parameters = Mapping[str, bool | int | str]

_INT64 = range(-(1 << 63), 1 << 63)


def checked_parameters(parameters: object) -> dict[str, Parameter]:
    """A copy of `parameters`, empty for None.

    Raises TritonModelException if it is no dict of texts to bool, int or text.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        # Triton prints the mangled name of the C++ class pybind11::dict.
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters)


def parameters_json(parameters: Mapping[str, Parameter]) -> str:
    """What `parameters()` of the model's own object shows."""
    return json.dumps(dict(parameters))


def all_sendable(parameters: Mapping[str, Parameter]) -> bool:
    """Whether all integers are of 64 bits."""
    return all(not isinstance(value, int) or value in _INT64 for value in parameters.values())


_Response = TypeVar("_Response", bound="BareResponse")


class BareResponse(Native):
    """The output tensors, or with `error` set why there are none: all that 2.51 has of a response.

    Raises TritonModelException if an output is None, TypeError for other foreign values.
    """

    __slots__ = ("_error", "_output_tensors", "_parameters")
    __module__ = MODULE

    _output_tensors: list[Tensor]
    _error: TritonError | None
    _parameters: Mapping[str, Parameter]

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        tensors = as_tensors(output_tensors, "output_tensors")
        self._error = as_instance(error, "error", TritonError, or_none=True)
        if None in tensors:
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._output_tensors = tensors
        self._parameters = {}

    @classmethod
    def _received(cls: type[_Response], response: InferResponse) -> _Response:
        self = object.__new__(cls)
        self._output_tensors = [Tensor._received(tensor) for tensor in response.outputs]
        self._error = TritonError._of(response.error) if response.error else None
        self._parameters = dict(response.parameters)
        return self

    def output_tensors(self) -> list[Tensor]:
        """The outputs, in a new list."""
        return self._output_tensors.copy()

    def has_error(self) -> bool:
        """Whether this says why there are no outputs."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Why there are no outputs; None if there are."""
        return self._error


class InferenceResponse(BareResponse):
    """The same with `parameters`, which go with the outputs to whoever asked.

    Raises TritonModelException if a parameter is no bool, int or text.
    """

    __slots__ = ()
    __module__ = MODULE

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        super().__init__(output_tensors, error)
        if parameters is not None:
            self._parameters = checked_parameters(parameters)

    def parameters(self) -> str:
        """The parameters as a JSON object."""
        return parameters_json(self._parameters)


# Models see one class of that name, and so do texts.
BareResponse.__name__ = BareResponse.__qualname__ = InferenceResponse.__name__


def get_output_tensor_by_name(inference_response: BareResponse, name: str) -> Tensor | None:
    """The first output of that name; None if there is none."""
    return first_named(inference_response.output_tensors(), name)


class Responder(Protocol):
    """What the senders of one instance have in common. Any thread."""

    @property
    def is_decoupled(self) -> bool:
        """Whether a request may have any number of responses, and not just one."""

    @property
    def generation(self) -> int:
        """That of the process whose requests these are; see `forks`."""

    def blank(self, request: InferRequest) -> InferResponse:
        """A response without anything in it."""

    def respond(self, request: InferRequest, answer: BareResponse) -> InferResponse:
        """The server's response for a model's, without tensors that nobody wants."""

    def finished(self) -> None:
        """The last response to one of the requests has been sent."""

    def lost(self, sender: InferenceResponseSender) -> None:
        """Nobody can send the last response any more; called wherever objects are freed."""


class InferenceResponseSender(NotConstructible):
    """Sends the responses to one request, in order. Any thread, also when `execute` has returned.

    Responses of a model that is not decoupled are kept until the last one is announced. A sender
    that is freed before that has its responder answer with an error.
    """

    __slots__ = ("_count", "_is_closed", "_kept", "_lock", "_request", "_responder", "_sink")
    __module__ = MODULE

    _request: InferRequest
    _responder: Responder
    _sink: ResponseSink
    _lock: threading.Lock
    _count: int
    _is_closed: bool
    _kept: InferResponse | None

    @classmethod
    def _open(cls, request: InferRequest, responder: Responder) -> InferenceResponseSender:
        self = object.__new__(cls)
        self._request = request
        self._responder = responder
        self._sink = request.sink
        self._lock = threading.Lock()
        self._count = 0
        self._is_closed = False
        self._kept = None
        return self

    def send(self, response: BareResponse | None = None, flags: int = 0) -> None:
        """Send `response`; with the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL it is the last.

        The flag may also come by itself. Raises TritonModelException for what cannot be sent.
        """
        response = as_instance(response, "response", BareResponse, or_none=True)
        flags = as_integer(flags, "flags", UINT32)
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._responder.generation != forks.generation:  # nothing would get out of this copy
            raise TritonModelException(forks.NO_SERVER)
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        backlog = self._request.cancellation.backlog
        if backlog is not None:
            backlog.wait()  # not under the lock, which a failure of the batch takes, too
        with self._lock:
            self._check(response)
            self._count += 1
            self._is_closed = is_final
            self._pass_on(response, is_final=is_final)
        if is_final:
            self._responder.finished()

    def is_cancelled(self) -> bool:
        """Whether the client has given up."""
        return self._request.cancellation.is_cancelled

    def _check(self, response: BareResponse | None) -> None:
        # In Triton's order: a second response is told as such though the sender is closed by then.
        if not self._responder.is_decoupled:
            if response is not None and self._count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one "
                    "response."
                )
            if response is None and not self._count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
        if self._is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def _pass_on(self, answer: BareResponse | None, *, is_final: bool) -> None:
        """Under the lock, which keeps the order: a sink never blocks."""
        if answer is not None:
            response = self._responder.respond(self._request, answer)
            if response.error is None:  # as in Triton, the model's own object is pruned too
                sent = {tensor.name for tensor in response.outputs}
                answer._output_tensors = [
                    tensor for tensor in answer._output_tensors if tensor._core.name in sent
                ]
        elif self._kept is not None:
            response, self._kept = self._kept, None
        else:
            response = self._responder.blank(self._request)
            response.empty = True
        response.final = is_final
        if is_final or self._responder.is_decoupled:
            deliver(self._sink, response)
        else:
            self._kept = response

    def _fail(self, error: ServerError, *, after_kept: bool = False) -> None:
        """Send `error` as the last response, unless the last one has been sent.

        A response that is kept is sent before it if `after_kept`, and is dropped otherwise.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            kept, self._kept = self._kept, None
            if kept is not None and after_kept:
                kept.final = False
                deliver(self._sink, kept)
            response = self._responder.blank(self._request)
            response.error = error
            deliver(self._sink, response)
        self._responder.finished()

    def _close_silently(self) -> bool:
        """Close it without a response: the request is answered, or given again, by others.

        False if it is too late for that: something has been sent that was to be the only response,
        or the last.
        """
        with self._lock:
            if self._is_closed or self._kept is not None:
                return False
            self._is_closed = True
        self._responder.finished()
        return True

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):  # it is not set if a model tried to make one
            self._responder.lost(self)
