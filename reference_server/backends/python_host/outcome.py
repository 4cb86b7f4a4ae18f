"""The outcome of a batch's requests: returned, sent, lost and rescheduled responses."""

from __future__ import annotations

import gc
import logging
import queue
import threading
from collections.abc import Collection, Sequence

from reference_server.backends.python_host.api.request import (
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
)
from reference_server.backends.python_host.api.response import (
    BareResponse,
    InferenceResponseSender,
)
from reference_server.core import forks
from reference_server.core.errors import ServerError, internal
from reference_server.core.request import InferRequest, InferResponse

log = logging.getLogger(__name__)

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
    ) -> None:
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
        return InferResponse(*self._model, request.id)

    def respond(self, request: InferRequest, answer: BareResponse) -> InferResponse:
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
                response.parameters = tuple(answer._parameters.items())
        return response

    def finished(self) -> None:
        with self._changed:
            self._open -= 1
            if not self._open:
                self._changed.notify_all()

    def lost(self, sender: InferenceResponseSender) -> None:
        self._lost.put(sender)  # takes no lock

    def _answer_lost(self) -> None:
        while (sender := self._lost.get()) is not None:
            sender._fail(self.failure(_LOST))
            del sender


# ----------------------------------------------------------------- after `execute` has returned

_NOT_ITERATIVE = (
    "Failed to release request: Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, "
    "while the model is not configured to handle such a flag."
)
_SENT_AND_RETURNED = (
    "Unable to send response. Non-decoupled model cannot send more than one response."
)


def returned_responses(
    returned: object, received: Sequence[InferenceRequest], senders: ResponseSenders
) -> Sequence[BareResponse | None]:
    """Return one response or None per request. Raises ServerError for another result."""
    count = len(received)
    if senders.is_decoupled:
        if returned is not None:
            raise senders.failure(
                f"Python model '{senders.name}' is using the decoupled mode and the execute "
                "function must return None."
            )
        return [None] * count
    if returned is None:
        return [None] * count
    if not isinstance(returned, list):
        raise senders.failure(
            f"Expected a list in the execute return, found type '{type(returned)}'."
        )
    if len(returned) != count:
        raise senders.failure(
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            f"objects. InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:"
            f"{len(returned)}\n"
        )
    for request, answer in zip(received, returned, strict=True):
        if answer is None:
            continue
        if not isinstance(answer, BareResponse):
            raise senders.failure(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(answer)}'."
            )
        if request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            raise senders.failure(
                "Expected a None object in the execute function return list for reschduled "
                f"request, found type '{type(answer)}'."
            )
    return returned


def server_responses(
    received: Sequence[InferenceRequest],
    returned: Sequence[BareResponse | None],
    senders: ResponseSenders,
) -> Sequence[InferResponse | None]:
    """Return the server's responses; None for requests that a sender answers.

    A request without a response gets a sender now. It lives as long as the model keeps the sender
    or the request.
    """
    responses: list[InferResponse | None] = []
    for request, answer in zip(received, returned, strict=True):
        response: InferResponse | None = None
        if answer is None:
            request.get_response_sender()
        elif (sender := request._mark_answered()) is None or sender._close_silently():
            response = senders.respond(request._request, answer)
        else:
            sender._fail(senders.failure(_SENT_AND_RETURNED))
        responses.append(response)
    return responses


def rescheduled(
    received: Sequence[InferenceRequest], senders: ResponseSenders, *, is_iterative: bool
) -> frozenset[int]:
    """Return the indices of the requests that the model has rescheduled.

    If the model is not iterative, these requests fail unless they are answered already.
    """
    indices = [
        index
        for index, request in enumerate(received)
        if request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    ]
    if not is_iterative:
        for index in indices:
            received[index].get_response_sender()._fail(senders.failure(_NOT_ITERATIVE))
        return frozenset()
    return frozenset(
        index for index in indices if received[index].get_response_sender()._close_silently()
    )


def end_with_error(received: Sequence[InferenceRequest], error: ServerError) -> bool:
    """Fail all unanswered requests with `error`; return False if no request has a sender.

    After False the caller must answer all requests. As in Triton, responses that the model sent
    before the error stay sent; the error follows them.
    """
    if all(request._sender is None for request in received):
        for request in received:
            request._is_answered = True
        return False
    for request in received:
        request.get_response_sender()._fail(error, after_kept=True)
    return True
