"""Triton's dynamic batcher: it decides which waiting requests form the next batch, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence

from reference_server.core.request import InferRequest
from reference_server.scheduling.work_queue import CANCELLED, Batch, Refusal

#: Number of batches prepared ahead for each instance. Triton forms another batch while fewer than
#: two batches are queued for an instance (`PayloadSlotAvailable` in its core's
#: src/rate_limiter.cc).
_AHEAD = 2


class BatchSizes:
    """The allowed and the preferred batch sizes, in rows.

    Args:
        largest: The largest batch. 0 means a model without batching: each request runs alone.
        preferred: Sizes at which a batch is sent early; empty means `largest` only.
    """

    def __init__(self, largest: int, preferred: tuple[int, ...] = ()) -> None:
        self.largest = max(1, largest)
        self.preferred = frozenset(preferred or (self.largest,))
        self.largest_preferred = max(self.preferred)

    def next_preferred(self, rows: int) -> int:
        """Return the smallest preferred size above `rows`, or else the smallest of all."""
        return min((size for size in self.preferred if size > rows), default=min(self.preferred))


class _PreparedBatch:
    """A batch that waits for an instance.

    `ended` is true if the next waiting request has another batch key: this batch cannot grow.
    """

    def __init__(self) -> None:
        self.requests: Batch = []
        self.rows = 0
        self.oldest_ns = 0
        self.ended = False

    @property
    def key(self) -> Hashable:
        """The batch key that all its requests share."""
        return self.requests[0].batch_key

    def add(self, requests: Batch) -> None:
        """Add requests; the caller has checked that they fit."""
        oldest_ns = min(request.queued_ns for request in requests)
        self.oldest_ns = min(self.oldest_ns, oldest_ns) if self.requests else oldest_ns
        self.rows += sum(request.batch_size for request in requests)
        self.requests += requests


class Forming:
    """The batch that the waiting requests would form now, in order, behind the requests of `base`.

    `saturated` is true if no later request may join; `ended` is true if the batch key is the
    reason.
    """

    def __init__(self, sizes: BatchSizes, base: _PreparedBatch | None = None) -> None:
        self._sizes = sizes
        self._base_rows = base.rows if base else 0
        self._key: Hashable = base.key if base else None
        self.rows = self._base_rows
        self._preferred_count = 0  # requests up to the largest preferred size reached
        self._oldest_ns = 0
        self._blocked = False
        self.joined = 0
        self.saturated = False
        self.ended = False

    def join(self, request: InferRequest) -> bool:
        """Add the next request. Return False if it has to wait for another batch."""
        sizes, rows = self._sizes, self.rows + request.batch_size
        if self._blocked:
            return False
        if self.rows:
            # The batch would exceed the largest preferred size: the earlier requests are sent now.
            if rows > sizes.largest_preferred and not self._preferred_count:
                self._preferred_count = self.joined
                self.saturated = True
            if rows > sizes.largest:
                self._blocked = True
            elif request.batch_key != self._key:  # even if later requests fit: order is kept
                self._blocked = self.ended = True
            if self._blocked:
                return False
        else:
            self._key = request.batch_key
        first = not self.joined
        self._oldest_ns = request.queued_ns if first else min(self._oldest_ns, request.queued_ns)
        self.joined += 1
        self.rows = rows
        if rows in sizes.preferred:
            self._preferred_count = self.joined
        return True

    def count(self, now_ns: int, delay_ns: int) -> int:
        """Return the number of requests, from the first, to send now; 0: wait for more requests."""
        sizes = self._sizes
        overdue = bool(self.joined) and now_ns - self._oldest_ns >= delay_ns
        if self._preferred_count and (delay_ns == 0 or not overdue):
            self.saturated = self.saturated or delay_ns == 0
            return self._preferred_count
        if self._blocked or self.rows >= sizes.largest_preferred:
            self.saturated = True
            return self.joined
        # Requests join a prepared batch without waiting, unless that batch has a preferred size.
        grows = self._base_rows > 0 and self._base_rows not in sizes.preferred
        return self.joined if overdue or grows else 0

    def due_ns(self, delay_ns: int) -> int:
        """Return the time at which the oldest request has waited the whole delay."""
        return self._oldest_ns + delay_ns


class DynamicBatcher:
    """The dynamic batcher for one queue without limits, timeouts or priorities.

    Sizes are rows: a request counts with its `batch_size` and is never split. While the instances
    are busy, two batches for each instance are prepared ahead. The last prepared batch grows until
    it has a preferred size. Prepared batches that have waited the whole delay are sent together.

    A cancelled request is refused, also when a prepared batch contains it. The batch runs without
    the request. Without a delay and preferred sizes, a batch is formed only when an instance takes
    it.

    Args:
        max_rows: The largest batch.
        preferred_rows: Sizes at which a batch is sent early; empty means `max_rows`.
        delay_ns: How long the oldest request may wait for other requests.
        instances: The number of instances.
    """

    takes_all = True

    def __init__(
        self, max_rows: int, preferred_rows: tuple[int, ...], delay_ns: int, instances: int = 1
    ) -> None:
        self._sizes = BatchSizes(max_rows, preferred_rows)
        self._delay_ns = delay_ns
        # Without a delay and preferred sizes, a batch is the same whenever it is formed.
        self._packs = not delay_ns and self._sizes.preferred == {self._sizes.largest}
        self._ahead = _AHEAD * instances
        self._waiting: deque[InferRequest] = deque()
        self._prepared: deque[_PreparedBatch] = deque()
        self._growing: _PreparedBatch | None = None  # the last prepared batch, if it may grow
        self._forming = Forming(self._sizes)
        self._size = 0
        self._due_ns: int | None = None
        self._cancelled: list[Refusal] = []

    def __len__(self) -> int:
        return self._size

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Append a request."""
        self._size += 1
        if self._packs:
            self._waiting.append(request)
            return
        self._prepare(now_ns)  # overdue requests do not wait for this request
        self._waiting.append(request)
        self._prepare(now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """Return the batch that an idle instance executes now; None to wait for more requests."""
        if self._packs:
            return self._pack()
        self._prepare(now_ns)
        self._due_ns = None
        while self._prepared:
            batch = self._pop_prepared()
            if self._delay_ns and not batch.ended:
                self._merge(batch, now_ns)
            self._size -= len(batch.requests)
            self._prepare(now_ns)
            if wanted := self._without_cancelled(batch.requests):
                return wanted
        self._due_ns = self._forming.due_ns(self._delay_ns) if self._waiting else None
        return None

    def _pack(self) -> Batch | None:
        """Return as many requests from the front as fit into one batch."""
        waiting, largest = self._waiting, self._sizes.largest
        batch: Batch = []
        rows = 0
        while waiting:
            request = waiting[0]
            if request.cancellation.is_cancelled:
                self._cancelled.append(Refusal(waiting.popleft(), CANCELLED))
                continue
            rows += request.batch_size
            if batch and (rows > largest or request.batch_key != batch[0].batch_key):
                break
            batch.append(waiting.popleft())
        self._size = len(waiting)
        return batch or None

    def _without_cancelled(self, batch: Batch) -> Batch:
        """Return `batch` without the requests that were cancelled since they joined it."""
        gone = [request for request in batch if request.cancellation.is_cancelled]
        if not gone:
            return batch
        self._cancelled += [Refusal(request, CANCELLED) for request in gone]
        return [request for request in batch if not request.cancellation.is_cancelled]

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Do nothing: no decision depends on finished batches."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the requests that were cancelled before an instance received them."""
        if not self._cancelled:
            return ()
        refused, self._cancelled = self._cancelled, []
        return refused

    def next_deadline_ns(self) -> int | None:
        """Return when the delay of the oldest request ends, if an instance waits for it."""
        return self._due_ns

    def flush(self) -> None:
        """Stop waiting for more requests."""
        self._delay_ns = 0

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Prepare batches for the new number of instances."""
        self._ahead += _AHEAD * (len(added) - len(leaving))
        if not self._packs:
            self._prepare(now_ns)

    def keeps(self, instance: int) -> bool:
        """Return False: any instance can execute any request."""
        return False

    def _pop_prepared(self) -> _PreparedBatch:
        """Remove and return the first prepared batch; it no longer grows."""
        batch = self._prepared.popleft()
        if batch is self._growing:
            self._grow(None)
        return batch

    def _merge(self, batch: _PreparedBatch, now_ns: int) -> None:
        """Add the other prepared batches that have waited the whole delay."""
        while self._prepared:
            other = self._prepared[0]
            if (
                other.ended
                or other.key != batch.key
                or now_ns - other.oldest_ns < self._delay_ns
                or batch.rows + other.rows > self._sizes.largest
            ):
                return
            batch.add(self._pop_prepared().requests)

    def _grow(self, batch: _PreparedBatch | None) -> None:
        """Start to form the requests that join `batch`, or a new batch if `batch` is None."""
        self._growing = batch
        self._forming = Forming(self._sizes, batch)

    def _prepare(self, now_ns: int) -> None:
        """Form batches of the waiting requests, up to the allowed number of prepared batches."""
        while self._waiting and len(self._prepared) < self._ahead:
            forming = self._extend_forming()
            count = forming.count(now_ns, self._delay_ns)
            if count:
                batch = self._growing
                if batch is None:
                    batch = _PreparedBatch()
                    self._prepared.append(batch)
                batch.add([self._waiting.popleft() for _ in range(count)])
                batch.ended = batch.ended or forming.ended
                self._grow(None if forming.saturated else batch)
            elif forming.saturated:
                if self._growing is not None:
                    self._growing.ended = forming.ended
                self._grow(None)
            else:
                return

    def _extend_forming(self) -> Forming:
        """Add the requests that arrived since the last call to the forming batch."""
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
