"""`InferenceResponseSender`: how a model answers one request itself, as often as it likes."""

from __future__ import annotations

import threading
from typing import Protocol

from reference_server.backends.python_host.api.constants import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
)
from reference_server.backends.python_host.api.errors import TritonModelException
from reference_server.backends.python_host.api.native import (
    MODULE,
    NotConstructible,
    incompatible_function,
)
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.core.delivery import deliver
from reference_server.core.errors import ServerError
from reference_server.core.request import InferRequest, ResponseSink
from reference_server.core.response import InferResponse

_new = object.__new__
_SIGNATURE = (
    f"(self: {MODULE}.InferenceResponseSender, response: {MODULE}.InferenceResponse = None, "
    "flags: int = 0) -> None"
)


class Responder(Protocol):
    """What the senders of one instance have in common. Any thread."""

    @property
    def is_decoupled(self) -> bool:
        """Whether a request may have any number of responses, and not just one."""

    def blank(self, request: InferRequest) -> InferResponse:
        """A response without anything in it."""

    def respond(self, request: InferRequest, answer: InferenceResponse) -> InferResponse:
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
        self = _new(cls)
        self._request = request
        self._responder = responder
        self._sink = request.sink
        self._lock = threading.Lock()
        self._count = 0
        self._is_closed = False
        self._kept = None
        return self

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send `response`; with the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL it is the last.

        The flag may also come by itself. Raises TritonModelException for what cannot be sent.
        """
        is_number = isinstance(flags, int) and 0 <= flags < 1 << 32
        if not is_number or not (response is None or isinstance(response, InferenceResponse)):
            given = (response,) if flags == 0 else (response, flags)
            raise incompatible_function("send", _SIGNATURE, self, *given)
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
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

    def _check(self, response: InferenceResponse | None) -> None:
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

    def _pass_on(self, answer: InferenceResponse | None, *, is_final: bool) -> None:
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

    def _fail(self, error: ServerError) -> None:
        """Send `error` as the last response, unless the last one has been sent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._kept = None
            response = self._responder.blank(self._request)
            response.error = error
            deliver(self._sink, response)
        self._responder.finished()

    def _retire(self) -> bool:
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
