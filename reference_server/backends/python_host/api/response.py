"""`InferenceResponse`, the result of `execute`, and the senders of responses.

There are two classes with the name `InferenceResponse`. A model receives the class of the emulated
Triton release.
"""

from __future__ import annotations

import gc
import json
import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from reference_server.backends.python_host.api.native import (
    INT64,
    MODULE,
    UINT32,
    Native,
    NotConstructible,
    TritonError,
    TritonModelException,
    as_instance,
    as_integer,
)
from reference_server.backends.python_host.api.tensor import Tensor, as_tensors, first_named
from reference_server.core import forks
from reference_server.core.errors import ServerError, internal
from reference_server.core.portability import ignore
from reference_server.core.request import (
    InferRequest,
    InferResponse,
    Parameter,
    ResponseSink,
    deliver,
)

log = logging.getLogger(__name__)

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

#: The parameters of a request or response that a model creates.
Parameters = Mapping[str, "bool | int | str"]


def checked_parameters(parameters: object) -> dict[str, Parameter]:
    """Return a copy of `parameters`; None becomes an empty dict.

    Raises:
        TritonModelException: The argument is not a dict with str keys and bool, int or str values.
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
    """Return the text of `parameters()` for an object that the model created."""
    return json.dumps(dict(parameters))


NOT_SENDABLE = "Unsupported value type on parameters"


def all_sendable(parameters: Mapping[str, Parameter]) -> bool:
    """Return whether all integers fit into 64 bits."""
    return all(not isinstance(value, int) or value in INT64 for value in parameters.values())


_Response = TypeVar("_Response", bound="BareResponse")
#: The parameters of an error that another model returned: Triton has no text for them.
_NO_TEXT: Mapping[str, Parameter] = {}


class BareResponse(Native):
    """The response to one request, as in Triton 2.51: output tensors or an error.

    Args:
        output_tensors: A list of tensors.
        error: The reason why the request failed; the output tensors are ignored then.

    Raises:
        TritonModelException: `output_tensors` contains None.
        TypeError: An argument has another type.
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
        if error is not None:
            as_instance(error, "error", TritonError, or_none=True)
        self._error = error
        if None in tensors:
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._output_tensors = tensors
        self._parameters = {}

    @classmethod
    def _received(cls: type[_Response], response: InferResponse) -> _Response:
        self = object.__new__(cls)
        self._output_tensors = [Tensor._received(tensor) for tensor in response.outputs]
        self._error = TritonError._of(response.error) if response.error else None
        self._parameters = _NO_TEXT if response.error else dict(response.parameters)
        return self

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors, in a new list."""
        return self._output_tensors.copy()

    def has_error(self) -> bool:
        """Return whether the response is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, or None."""
        return self._error


class InferenceResponse(BareResponse):
    """The response to one request: output tensors or an error, and parameters.

    Args:
        output_tensors: A list of tensors.
        error: The reason why the request failed; the output tensors are ignored then.
        parameters: The response's parameters for the client; the keys are strings.

    Raises:
        TritonModelException: `output_tensors` contains None, or a parameter is not a bool, int
            or str.
        TypeError: An argument has another type.
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
        """Return the parameters as a JSON object; "" for an error of another model."""
        return "" if self._parameters is _NO_TEXT else parameters_json(self._parameters)


# Models and error texts see one class with that name.
BareResponse.__name__ = BareResponse.__qualname__ = InferenceResponse.__name__


def get_output_tensor_by_name(inference_response: BareResponse, name: str) -> Tensor | None:
    """Return the first output of that name, or None.

    Args:
        inference_response: The response.
        name: The name of the output.
    """
    return first_named(inference_response.output_tensors(), name)


class InferenceResponseSender(NotConstructible):
    """Sends the responses to one request, in order. Thread-safe, also after `execute` has returned.

    For a model that is not decoupled, the response is held back until the final flag is sent. If
    the model drops a sender before that, the client receives an error.
    """

    __slots__ = ("_count", "_held_back", "_is_closed", "_lock", "_request", "_senders", "_sink")
    __module__ = MODULE

    _request: InferRequest
    _senders: ResponseSenders
    _sink: ResponseSink
    _lock: threading.Lock
    _count: int
    _is_closed: bool
    _held_back: InferResponse | None

    @classmethod
    def _open(cls, request: InferRequest, senders: ResponseSenders) -> InferenceResponseSender:
        self = object.__new__(cls)
        self._request = request
        self._senders = senders
        self._sink = request.sink
        self._lock = threading.Lock()
        self._count = 0
        self._is_closed = False
        self._held_back = None
        return self

    def send(self, response: BareResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both.

        Args:
            response: The response. It may be None if the final flag is set.
            flags: 0, or `TRITONSERVER_RESPONSE_COMPLETE_FINAL` for the last response.

        Raises:
            TritonModelException: The flag is unknown, there is nothing to send, the sender is
                closed, or a model that is not decoupled sends a second response.
            TypeError: An argument has another type.
        """
        response = as_instance(response, "response", BareResponse, or_none=True)
        flags = as_integer(flags, "flags", UINT32)
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._senders.generation != forks.generation:  # a forked child has no client
            raise TritonModelException(forks.NO_SERVER)
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        backlog = self._request.cancellation.backlog
        if backlog is not None:
            backlog.wait()  # without the lock, which the failure of a batch needs too
        with self._lock:
            self._check(response)
            self._count += 1
            self._is_closed = is_final
            self._pass_on(response, is_final=is_final)
        if is_final:
            self._senders.finished()

    def is_cancelled(self) -> bool:
        """Return whether the request has been cancelled."""
        return self._request.cancellation.is_cancelled

    def _check(self, response: BareResponse | None) -> None:
        # In Triton's order: this error also applies when the sender is closed already.
        if not self._senders.is_decoupled:
            if response is not None and self._count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one "
                    "response."
                )
            if response is None and not self._count:
                self._senders.report("final-flag-first")
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
        if self._is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def _pass_on(self, answer: BareResponse | None, *, is_final: bool) -> None:
        """Send a response. The caller holds the lock, which keeps the order; no sink blocks."""
        if answer is not None:
            response = self._senders.respond(self._request, answer)
            if response.error is None:  # as in Triton, the model's object loses the other tensors
                sent = {tensor.name for tensor in response.outputs}
                answer._output_tensors = [
                    tensor for tensor in answer._output_tensors if tensor._core.name in sent
                ]
        elif self._held_back is not None:
            response, self._held_back = self._held_back, None
        else:
            response = self._senders.blank(self._request)
            response.empty = True
        response.final = is_final
        if is_final or self._senders.is_decoupled:
            deliver(self._sink, response)
        else:
            self._held_back = response

    def _fail(self, error: ServerError, *, after_kept: bool = False) -> None:
        """Send `error` as the last response, unless the last response has been sent.

        If `after_kept` is set, a response that is held back is sent before `error`; else it is
        dropped.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            kept, self._held_back = self._held_back, None
            if kept is not None and after_kept:
                kept.final = False
                deliver(self._sink, kept)
            response = self._senders.blank(self._request)
            response.error = error
            deliver(self._sink, response)
        self._senders.finished()

    def _close_silently(self) -> bool:
        """Close the sender without a response, since the request is answered by other means.

        Returns:
            False if it is closed already, or if it holds back a response.
        """
        with self._lock:
            if self._is_closed or self._held_back is not None:
                return False
            self._is_closed = True
        self._senders.finished()
        return True

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):  # missing if the constructor raised
            self._senders.lost(self)


_LOST = (
    "The model has dropped the request: found no complete response; expected a returned response "
    "or the final flag."
)


class ResponseSenders:
    """Opens response senders, and fails the requests whose senders the model drops. Thread-safe.

    Args:
        name: The instance's name.
        model_name: The model's name.
        model_version: The model's version.
        output_names: The outputs that the model declares.
        is_decoupled: Whether the model is decoupled.
        state_names: The outputs that the server keeps for the next request of a sequence.
        report: Receives the keys of portability rows that apply to the model.
    """

    def __init__(
        self,
        name: str,
        model_name: str,
        model_version: int,
        output_names: frozenset[str],
        *,
        is_decoupled: bool,
        state_names: frozenset[str] = frozenset(),
        report: Callable[[str], None] = ignore,
    ) -> None:
        self.report = report
        self.is_decoupled = is_decoupled
        self.generation = forks.generation
        self.name = name
        self._model = model_name, model_version
        self.output_names = output_names
        self._state_names = state_names
        self._open = 0
        self._changed = threading.Condition()
        # The garbage collector may free a sender at any point, with any lock held. Only the `put`
        # of this queue is safe there, so another thread answers.
        self._lost: queue.SimpleQueue[InferenceResponseSender | None] = queue.SimpleQueue()
        self._reaper: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"ResponseSenders({self.name}: {self._open} open)"

    def open(self, request: InferRequest) -> InferenceResponseSender:
        """Return a sender for `request`, which must not have another open sender."""
        with self._changed:
            self._open += 1
            if self._reaper is None:
                self._reaper = threading.Thread(
                    target=self._answer_lost, name=f"{self.name} senders", daemon=True
                )
                self._reaper.start()
        return InferenceResponseSender._open(request, self)

    def close(self) -> None:
        """Wait until the last response to each request has been sent."""
        with self._changed:
            if self._open:
                gc.collect()  # a dropped sender may be part of a cycle
            self._changed.wait_for(lambda: not self._open)
            reaper, self._reaper = self._reaper, None
        if reaper is not None:
            self._lost.put(None)
            reaper.join()

    def failure(self, message: str) -> ServerError:
        """Return the error for the clients, and write it to the log."""
        error = internal(
            f"Failed to process the request(s) for model '{self.name}', message: {message}"
        )
        log.error("%s", error.message)  # the error object will refer to the batch
        return error

    def blank(self, request: InferRequest) -> InferResponse:
        """Return an empty response."""
        return InferResponse(*self._model, request.id)

    def respond(self, request: InferRequest, answer: BareResponse) -> InferResponse:
        """Convert the model's response to the server's, with the requested tensors only."""
        response = InferResponse(*self._model, request.id)
        if answer._error is not None:
            response.error = answer._error._as_server_error()
        else:
            wanted: Collection[str] = request.requested_outputs or self.output_names
            if self._state_names:
                wanted = self._state_names.union(wanted)
            response.outputs = [
                tensor._core for tensor in answer._output_tensors if tensor._core.name in wanted
            ]
            if answer._parameters:
                if all_sendable(answer._parameters):
                    response.parameters = tuple(answer._parameters.items())
                else:
                    response.outputs, response.error = [], internal(NOT_SENDABLE)
        return response

    def finished(self) -> None:
        """Count a request whose last response has been sent."""
        with self._changed:
            self._open -= 1
            if not self._open:
                self._changed.notify_all()

    def lost(self, sender: InferenceResponseSender) -> None:
        """Have a freed sender's request answered. The garbage collector calls this: no locks."""
        self._lost.put(sender)

    def _answer_lost(self) -> None:
        while (sender := self._lost.get()) is not None:
            self.report("no-response")
            sender._fail(self.failure(_LOST))
            del sender
