"""Which waiting requests run next, and with whom: Triton's dynamic batcher."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from reference_server.core.request import InferRequest
from reference_server.scheduling.forming import BatchSizes, Forming, Prepared
from reference_server.scheduling.work import CANCELLED, Batch, Refusal

#: How many batches are ready for each instance before it asks for them.
_AHEAD = 2


class DynamicBatcher:
    """The dynamic batcher for one queue without limits, timeouts or priorities.

    Sizes are rows: a request counts with its `batch_size` and is never split. While the instances
    are busy the next batches are already being made, two for each; the last of them grows until
    it has a size worth sending. What is ready and has waited the delay goes together.

    `max_rows`: the largest batch. `preferred_rows`: sizes worth sending early; empty means
    `max_rows`. `delay_ns`: how long the oldest request may wait for others. A cancelled request
    is refused if it has not joined a batch yet.
    """

    def __init__(
        self, max_rows: int, preferred_rows: tuple[int, ...], delay_ns: int, instances: int = 1
    ) -> None:
        self._sizes = BatchSizes(max_rows, preferred_rows)
        self._delay_ns = delay_ns
        self._ahead = _AHEAD * instances
        self._waiting: deque[InferRequest] = deque()
        self._prepared: deque[Prepared] = deque()
        self._growing: Prepared | None = None  # the last of those prepared, if it may grow
        self._forming = Forming(self._sizes)
        self._size = 0
        self._due_ns: int | None = None
        self._cancelled: list[Refusal] = []

    def __len__(self) -> int:
        return self._size

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request at the end of the queue."""
        self._prepare(now_ns)  # what has become overdue since does not wait for this one
        self._waiting.append(request)
        self._size += 1
        self._prepare(now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """The batch that a free instance shall run now; None if it is worth waiting."""
        self._prepare(now_ns)
        if not self._prepared:
            self._due_ns = self._forming.due_ns(self._delay_ns) if self._waiting else None
            return None
        self._due_ns = None
        batch = self._first()
        if self._delay_ns and not batch.ended:
            self._merge(batch, now_ns)
        self._size -= len(batch.requests)
        self._prepare(now_ns)
        return batch.requests

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Nothing depends on it."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Those that were cancelled before they joined a batch."""
        if not self._cancelled:
            return ()
        refused, self._cancelled = self._cancelled, []
        return refused

    def next_deadline_ns(self) -> int | None:
        """When the oldest request has waited the whole delay, if an instance waits for that."""
        return self._due_ns

    def flush(self) -> None:
        """Stop waiting for company."""
        self._delay_ns = 0

    def _first(self) -> Prepared:
        """The batch that was ready first, which is to grow no more."""
        batch = self._prepared.popleft()
        if batch is self._growing:
            self._grow(None)
        return batch

    def _merge(self, batch: Prepared, now_ns: int) -> None:
        """Let those go along that are ready as well and have waited long enough."""
        while self._prepared:
            other = self._prepared[0]
            if (
                other.ended
                or other.key != batch.key
                or now_ns - other.oldest_ns < self._delay_ns
                or batch.rows + other.rows > self._sizes.largest
            ):
                return
            batch.take_in(self._first().requests)

    def _grow(self, batch: Prepared | None) -> None:
        """From now on form what goes behind `batch`, or a batch of its own."""
        self._growing = batch
        self._forming = Forming(self._sizes, batch)

    def _prepare(self, now_ns: int) -> None:
        """Make batches of those that wait, as far ahead as may be."""
        while self._waiting and len(self._prepared) < self._ahead:
            forming = self._walk()
            count = forming.count(now_ns, self._delay_ns)
            if count:
                batch = self._growing
                if batch is None:
                    batch = Prepared()
                    self._prepared.append(batch)
                batch.take_in([self._waiting.popleft() for _ in range(count)])
                batch.ended = batch.ended or forming.ended
                self._grow(None if forming.saturated else batch)
            elif forming.saturated:
                if self._growing is not None:
                    self._growing.ended = forming.ended
                self._grow(None)
            else:
                return

    def _walk(self) -> Forming:
        """Let those join that have come since."""
        forming = self._forming
        while forming.joined < len(self._waiting):
            request = self._waiting[forming.joined]
            if request.cancellation.is_cancelled:
                del self._waiting[forming.joined]
                self._size -= 1
                self._cancelled.append(Refusal(request, CANCELLED))
            elif not forming.join(request):
                break
        return forming
