"""The port between the instance scheduler and the queues that decide for it; the simplest of them.

Queues are pure: facts and a time in, decisions out. No thread, lock or clock here; the caller gives
the time in nanoseconds of the monotonic clock and guards the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from reference_server.core.errors import Code, ServerError, unavailable
from reference_server.core.request import InferRequest

Batch = list[InferRequest]

#: What a request is answered with that was given up while it waited, be it between two steps.
CANCELLED = ServerError(Code.CANCELLED, "Request cancelled")


def stopped(request: InferRequest) -> ServerError:
    """What a request is refused with that comes to a scheduler which is closing."""
    return unavailable(
        f"{request.label} Server is stopping, scheduler for model has stopped "
        "accepting new inference requests"
    )


class Refusal(NamedTuple):
    """A waiting request that will not run, and what its client is told."""

    request: InferRequest
    error: ServerError


class WorkQueue(Protocol):
    """Requests waiting for an instance. Not thread-safe.

    Instances are known by their number, from 0. The scheduler asks again (`take`) for each idle
    instance whenever something has changed: after `offer`, after `finished`, and at
    `next_deadline_ns`; and it answers what `refused` gives after each of these.

    `takes_all`: `offer` never refuses. Then several requests may be offered before it asks.
    """

    @property
    def takes_all(self) -> bool: ...

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request. Raises ServerError if it is refused at once."""

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """What that instance, which is free, shall run now; None if it has to wait for more."""

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """`instance` has executed `batch`; the requests in `again` want to be executed once more.

        Their answers may be on their way yet.
        """

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """The requests given up since it was asked last: expired, cancelled, without a sequence.

        Asked at `next_deadline_ns` too, when every instance may be busy: what expires by `now_ns`
        is among them.
        """

    def next_deadline_ns(self) -> int | None:
        """When to ask again though nothing else has happened; None if never."""

    def flush(self) -> None:
        """From now on give whatever waits, without delay: the model is closing."""

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Instances come, and others leave: these get nothing but what is bound to them."""

    def keeps(self, instance: int) -> bool:
        """Whether an instance that is to leave is needed yet: for sequences that it has begun."""

    def __len__(self) -> int:
        """The number of waiting requests."""


class Fifo:
    """One request at a time, in order: what a model without a batcher does.

    A request whose client has left is refused where an instance would be given it.
    """

    takes_all = True

    def __init__(self) -> None:
        self._waiting: deque[InferRequest] = deque()
        self._cancelled: list[Refusal] = []

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request at the end of the queue."""
        self._waiting.append(request)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """The oldest request that is still wanted."""
        while self._waiting:
            request = self._waiting.popleft()
            if not request.cancellation.is_cancelled:
                return [request]
            self._cancelled.append(Refusal(request, CANCELLED))
        return None

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Nothing depends on it."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Those that were cancelled while they waited."""
        if not self._cancelled:
            return ()
        refused, self._cancelled = self._cancelled, []
        return refused

    def next_deadline_ns(self) -> int | None:
        """Never: a waiting request can run at once."""
        return None

    def flush(self) -> None:
        """Nothing is ever delayed."""

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Any instance will do."""

    def keeps(self, instance: int) -> bool:
        """Never."""
        return False

    def __len__(self) -> int:
        return len(self._waiting)
