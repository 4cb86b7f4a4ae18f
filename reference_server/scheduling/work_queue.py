"""The interface between the instance scheduler and its queues, and the simplest queue.

Queues are pure: they receive facts and a time, and return decisions. They have no threads, locks or
clocks. The caller passes the time in nanoseconds of the monotonic clock and guards the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from reference_server.core.errors import Code, ServerError, unavailable
from reference_server.core.request import InferRequest

Batch = list[InferRequest]

#: The error of a request that was cancelled while it waited, also between two steps of a sequence.
CANCELLED = ServerError(Code.CANCELLED, "Request cancelled")


STOPPED = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def stopped(request: InferRequest) -> ServerError:
    """Return the error for a request that arrives while its scheduler is closing."""
    return unavailable(f"{request.label} {STOPPED}")


class Refusal(NamedTuple):
    """A waiting request that will not run, and the error for its client."""

    request: InferRequest
    error: ServerError


class WorkQueue(Protocol):
    """Requests waiting for an instance. Not thread-safe.

    Instances are numbered from 0. The scheduler calls `take` for each idle instance after `offer`,
    after `finished` and at `next_deadline_ns`. After each of these events the scheduler answers the
    requests that `refused` returns.

    If `takes_all` is true, `offer` never refuses. The scheduler may then offer several requests
    before it calls `take`.
    """

    @property
    def takes_all(self) -> bool: ...

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Add a request. Raises ServerError if it is refused immediately."""

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """Return the batch that this idle instance executes now; None to wait for more requests."""

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Record that `instance` executed `batch`; the requests in `again` are to run once more.

        Responses of the batch may still be pending.
        """

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the requests refused since the last call.

        They have expired, were cancelled, or belong to no sequence.

        The scheduler also calls this method at `next_deadline_ns`, when all instances may be busy.
        Requests that expire by `now_ns` are included.
        """

    def next_deadline_ns(self) -> int | None:
        """Return when the scheduler must call again, even without another event; None: never."""

    def flush(self) -> None:
        """Return waiting requests without delay from now on: the model is closing."""

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Add and remove instances; a leaving instance only gets requests bound to it."""

    def keeps(self, instance: int) -> bool:
        """Return whether a leaving instance is still needed for sequences that it has started."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""


class Fifo:
    """One request at a time, in order: the queue of a model without a batcher.

    A cancelled request is refused when an instance would receive it.
    """

    takes_all = True

    def __init__(self) -> None:
        self._waiting: deque[InferRequest] = deque()
        self._cancelled: list[Refusal] = []

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append a request."""
        self._waiting.append(request)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """Return the oldest request that is not cancelled."""
        while self._waiting:
            request = self._waiting.popleft()
            if not request.cancellation.is_cancelled:
                return [request]
            self._cancelled.append(Refusal(request, CANCELLED))
        return None

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Do nothing: no decision depends on finished batches."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the requests that were cancelled while they waited."""
        if not self._cancelled:
            return ()
        refused, self._cancelled = self._cancelled, []
        return refused

    def next_deadline_ns(self) -> int | None:
        """Return None: a waiting request can run immediately."""
        return None

    def flush(self) -> None:
        """Do nothing: requests are never delayed."""

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Do nothing: any instance can execute any request."""

    def keeps(self, instance: int) -> bool:
        """Return False: requests are not bound to instances."""
        return False

    def __len__(self) -> int:
        return len(self._waiting)
