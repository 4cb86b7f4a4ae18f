"""The response senders of one instance: what they have in common, and which are still open."""

from __future__ import annotations

import gc
import logging
import queue
import threading
from collections.abc import Collection

from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.backends.python_host.api.sender import InferenceResponseSender
from reference_server.core.errors import ServerError, internal
from reference_server.core.request import InferRequest
from reference_server.core.response import InferResponse

log = logging.getLogger(__name__)

_LOST = (
    "The model has let go of the request without a complete answer: it must return a response, or "
    "send the final flag."
)


class Senders:
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
        self.name = name
        self._model = model_name, model_version
        self.output_names = output_names
        self._state_names = state_names
        self._open = 0
        self._changed = threading.Condition()
        # A sender may be freed wherever memory is, with any lock held; only this queue's `put` is
        # made for that, so another thread answers.
        self._lost: queue.SimpleQueue[InferenceResponseSender | None] = queue.SimpleQueue()
        self._mourner: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"Senders({self.name}: {self._open} open)"

    def open(self, request: InferRequest) -> InferenceResponseSender:
        """A sender of responses to `request`, which has no other that is open."""
        with self._changed:
            self._open += 1
            if self._mourner is None:
                self._mourner = threading.Thread(
                    target=self._mourn, name=f"{self.name} senders", daemon=True
                )
                self._mourner.start()
        return InferenceResponseSender._open(request, self)

    def close(self) -> None:
        """Wait until the last response to each request has been sent."""
        with self._changed:
            if self._open:
                gc.collect()  # a forgotten sender may be part of a cycle
            self._changed.wait_for(lambda: not self._open)
            mourner, self._mourner = self._mourner, None
        if mourner is not None:
            self._lost.put(None)
            mourner.join()

    def failure(self, message: str) -> ServerError:
        """The error that clients are told, written to the log once."""
        error = internal(
            f"Failed to process the request(s) for model '{self.name}', message: {message}"
        )
        log.error("%s", error.message)  # not the error, which comes to hold the batch
        return error

    # -- what senders ask for

    def blank(self, request: InferRequest) -> InferResponse:
        """A response without anything in it."""
        return InferResponse(*self._model, request.id)

    def respond(self, request: InferRequest, answer: InferenceResponse) -> InferResponse:
        """The server's response for a model's, without tensors that nobody wants."""
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
        """A sender has been closed."""
        with self._changed:
            self._open -= 1
            if not self._open:
                self._changed.notify_all()

    def lost(self, sender: InferenceResponseSender) -> None:
        """An open sender is being freed; takes no lock."""
        self._lost.put(sender)

    def _mourn(self) -> None:
        while (sender := self._lost.get()) is not None:
            sender._fail(self.failure(_LOST))
            del sender
