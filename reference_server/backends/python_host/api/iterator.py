"""`ResponseIterator`: the responses of a model that may answer as often as it likes."""

from __future__ import annotations

from reference_server.backends.python_host.api.calls import Replies
from reference_server.backends.python_host.api.native import MODULE, NotConstructible
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.core.cancellation import Cancellation


class ResponseIterator(NotConstructible):
    """Gives the responses as they come. A mark that nothing follows is a response without outputs.

    After its end it can be iterated again, from the first response. One thread at a time.
    """

    __slots__ = ("_cancellation", "_given", "_is_finished", "_next", "_replies")
    __module__ = MODULE

    _replies: Replies
    _cancellation: Cancellation
    _given: list[InferenceResponse]
    _next: int
    _is_finished: bool

    @classmethod
    def _of(cls, replies: Replies, cancellation: Cancellation) -> ResponseIterator:
        self = object.__new__(cls)
        self._replies = replies
        self._cancellation = cancellation
        self._given = []
        self._next = 0
        self._is_finished = False
        return self

    def __iter__(self) -> ResponseIterator:
        if self._is_finished:
            self._next = 0
            self._is_finished = False
        return self

    def __next__(self) -> InferenceResponse:
        """The next response. Blocks until it is there; raises StopIteration after the last."""
        if self._next == len(self._given):
            response = self._replies.get(self._next)
            if response is None:
                self._is_finished = True
                raise StopIteration("Iteration is done for the responses.")
            self._given.append(InferenceResponse._received(response))
        given = self._given[self._next]
        self._next += 1
        return given

    def cancel(self) -> None:
        """Tell the model that nobody waits any more; nothing once its last response is there."""
        if not self._replies.is_complete:
            self._cancellation.cancel()
