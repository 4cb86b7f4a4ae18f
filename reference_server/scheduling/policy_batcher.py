"""The dynamic batcher where some requests go before others, or not every one may wait."""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.config.scheduler_settings import DynamicBatching
from reference_server.core.request import InferRequest
from reference_server.scheduling.forming import BatchSizes, Forming
from reference_server.scheduling.policies import PriorityQueue
from reference_server.scheduling.work import CANCELLED, Batch, Refusal


class PolicyBatcher:
    """Forms a batch when an instance asks for one, of those that are first in line by then.

    Sizes, the delay and `max_rows` are those of DynamicBatcher; nothing is prepared ahead.
    """

    def __init__(self, max_rows: int, settings: DynamicBatching) -> None:
        self._sizes = BatchSizes(max_rows, settings.preferred_batch_sizes)
        self._delay_ns = settings.max_queue_delay_us * 1000
        self._queue = PriorityQueue(settings)
        self._due_ns: int | None = None
        self._refused: list[Refusal] = []

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request. Raises ServerError UNAVAILABLE if its queue is full."""
        self._refused += self._queue.expire(now_ns)
        self._queue.offer(request)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """The batch that a free instance shall run now; None if it is worth waiting."""
        self._due_ns = None
        self._refused += self._queue.expire(now_ns)
        self._drop_cancelled()
        forming, joined = Forming(self._sizes), []
        for request in self._queue:
            if request.cancellation.is_cancelled:
                continue
            if not forming.join(request):
                break
            joined.append(request)
        batch = joined[: forming.count(now_ns, self._delay_ns)]
        if batch:
            self._remove(batch)
        elif joined:
            self._due_ns = forming.due_ns(self._delay_ns)
        return batch or None

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Nothing depends on it."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Those that expired, and those that were cancelled."""
        refused, self._refused = self._refused + self._queue.expire(now_ns), []
        return refused

    def next_deadline_ns(self) -> int | None:
        """When a request expires, or the oldest of those that an instance waits for is due."""
        expiry_ns = self._queue.next_expiry_ns()
        if expiry_ns is None or self._due_ns is None:
            return self._due_ns if expiry_ns is None else expiry_ns
        return min(expiry_ns, self._due_ns)

    def flush(self) -> None:
        """Stop waiting for company."""
        self._delay_ns = 0

    def _drop_cancelled(self) -> None:
        while len(self._queue) and next(iter(self._queue)).cancellation.is_cancelled:
            self._refused.append(Refusal(self._queue.pop(), CANCELLED))

    def _remove(self, batch: Batch) -> None:
        """Take a batch out of the queue, and the cancelled requests between its own."""
        for request in batch:
            while (first := self._queue.pop()) is not request:
                self._refused.append(Refusal(first, CANCELLED))
