"""What becomes of a batch's requests: responses that are returned, sent, lost, or rescheduled."""

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
    "The model has let go of the request without a complete answer: it must return a response, or "
    "send the final flag."
)


class ResponseSenders:
    """Opens senders, and answers for those that the model forgets. Any thread.

    `name` is the instance's, `output_names` are the outputs that its model declares, `state_names`
    those that a sequence's next request is given, whether a client wants them or not.
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
        # A sender may be freed wherever memory is, with any lock held; only this queue's `put` is
        # made for that, so another thread answers.
        self._lost: queue.SimpleQueue[InferenceResponseSender | None] = queue.SimpleQueue()
        self._reaper: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"ResponseSenders({self.name}: {self._open} open)"

    def open(self, request: InferRequest) -> InferenceResponseSender:
        """A sender of responses to `request`, which has no other that is open."""
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
                gc.collect()  # a forgotten sender may be part of a cycle
            self._changed.wait_for(lambda: not self._open)
            reaper, self._reaper = self._reaper, None
        if reaper is not None:
            self._lost.put(None)
            reaper.join()

    def failure(self, message: str) -> ServerError:
        """The error that clients are told, written to the log once."""
        error = internal(
            f"Failed to process the request(s) for model '{self.name}', message: {message}"
        )
        log.error("%s", error.message)  # not the error, which comes to hold the batch
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
    """What `execute` returned: one response per request, or None. Raises ServerError if not."""
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
    """The server's responses for those that `execute` returned; None where a sender has the rest.

    A request without a response has a sender from now on, which lives as long as the model keeps it
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
    """The indices of the requests that the model has rescheduled: it gets them once more.

    Those that cannot be given again end with an error, unless they have ended already.
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
    """End all requests that are still open with `error`; False if nobody has used a sender.

    Then all are still to be answered, by whoever is told of the error. As in Triton, what the model
    has sent before it raised has been sent: the error comes after it.
    """
    if all(request._sender is None for request in received):
        for request in received:
            request._is_answered = True
        return False
    for request in received:
        request.get_response_sender()._fail(error, after_kept=True)
    return True
