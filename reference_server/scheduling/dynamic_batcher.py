"""Triton's dynamic batcher: which of the waiting requests form the next batch, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence

from reference_server.core.request import InferRequest
from reference_server.scheduling.work_queue import CANCELLED, Batch, Refusal

#: How many batches are ready for each instance before it asks for them: Triton forms another one
#: while fewer than two of an instance are queued (`PayloadSlotAvailable` in its core's
#: src/rate_limiter.cc).
_AHEAD = 2


class BatchSizes:
    """How large batches may and should be, in rows.

    `largest` is the largest batch, `preferred` the sizes worth sending early: none means
    `largest`. A model without batches (0) runs each request alone.
    """

    def __init__(self, largest: int, preferred: tuple[int, ...] = ()) -> None:
        self.largest = max(1, largest)
        self.preferred = frozenset(preferred or (self.largest,))
        self.largest_preferred = max(self.preferred)


class _PreparedBatch:
    """A batch that is ready, and waits for an instance. `ended`: another key came behind it."""

    def __init__(self) -> None:
        self.requests: Batch = []
        self.rows = 0
        self.oldest_ns = 0
        self.ended = False

    @property
    def key(self) -> Hashable:
        """What all of its requests have in common."""
        return self.requests[0].batch_key

    def take_in(self, requests: Batch) -> None:
        """Add requests that fit."""
        oldest_ns = min(request.queued_ns for request in requests)
        self.oldest_ns = min(self.oldest_ns, oldest_ns) if self.requests else oldest_ns
        self.rows += sum(request.batch_size for request in requests)
        self.requests += requests


class Forming:
    """Requests that would run together now, in order, behind those of `base` if there is one.

    `saturated`: nothing that comes later shall join them. `ended`: because of its key.
    """

    def __init__(self, sizes: BatchSizes, base: _PreparedBatch | None = None) -> None:
        self._sizes = sizes
        self._base_rows = base.rows if base else 0
        self._key: Hashable = base.key if base else None
        self._rows = self._base_rows
        self._preferred_count = 0  # those up to the largest preferred size reached
        self._oldest_ns = 0
        self._blocked = False
        self.joined = 0
        self.saturated = False
        self.ended = False

    def join(self, request: InferRequest) -> bool:
        """Take in the next request; False if it has to wait for another batch."""
        sizes, rows = self._sizes, self._rows + request.batch_size
        if self._blocked:
            return False
        if self._rows:
            # It leads past the largest preferred size: those before it are worth sending now.
            if rows > sizes.largest_preferred and not self._preferred_count:
                self._preferred_count = self.joined
                self.saturated = True
            if rows > sizes.largest:
                self._blocked = True
            elif request.batch_key != self._key:  # nobody is overtaken, though later ones may fit
                self._blocked = self.ended = True
            if self._blocked:
                return False
        else:
            self._key = request.batch_key
        first = not self.joined
        self._oldest_ns = request.queued_ns if first else min(self._oldest_ns, request.queued_ns)
        self.joined += 1
        self._rows = rows
        if rows in sizes.preferred:
            self._preferred_count = self.joined
        return True

    def count(self, now_ns: int, delay_ns: int) -> int:
        """How many requests, from the first, go to an instance now; 0 to wait for company."""
        sizes = self._sizes
        overdue = bool(self.joined) and now_ns - self._oldest_ns >= delay_ns
        if self._preferred_count and (delay_ns == 0 or not overdue):
            self.saturated = self.saturated or delay_ns == 0
            return self._preferred_count
        if self._blocked or self._rows >= sizes.largest_preferred:
            self.saturated = True
            return self.joined
        # Behind a batch that is on its way they wait no more, unless its size is a preferred one.
        grows = self._base_rows > 0 and self._base_rows not in sizes.preferred
        return self.joined if overdue or grows else 0

    def due_ns(self, delay_ns: int) -> int:
        """When the oldest has waited the whole delay."""
        return self._oldest_ns + delay_ns


class DynamicBatcher:
    """The dynamic batcher for one queue without limits, timeouts or priorities.

    Sizes are rows: a request counts with its `batch_size` and is never split. While the instances
    are busy the next batches are already being made, two for each; the last of them grows until
    it has a size worth sending. What is ready and has waited the delay goes together.

    `max_rows`: the largest batch. `preferred_rows`: sizes worth sending early; empty means
    `max_rows`. `delay_ns`: how long the oldest request may wait for others. A cancelled request
    is refused, be it that a batch which waits has it: this then goes without. Without a delay and
    preferred sizes batches are made when an instance asks for one.
    """

    takes_all = True

    def __init__(
        self, max_rows: int, preferred_rows: tuple[int, ...], delay_ns: int, instances: int = 1
    ) -> None:
        self._sizes = BatchSizes(max_rows, preferred_rows)
        self._delay_ns = delay_ns
        # Without a delay, and sizes to wait for, batches are the same whenever they are made.
        self._packs = not delay_ns and self._sizes.preferred == {self._sizes.largest}
        self._ahead = _AHEAD * instances
        self._waiting: deque[InferRequest] = deque()
        self._prepared: deque[_PreparedBatch] = deque()
        self._growing: _PreparedBatch | None = None  # the last of those prepared, if it may grow
        self._forming = Forming(self._sizes)
        self._size = 0
        self._due_ns: int | None = None
        self._cancelled: list[Refusal] = []

    def __len__(self) -> int:
        return self._size

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request at the end of the queue."""
        self._size += 1
        if self._packs:
            self._waiting.append(request)
            return
        self._prepare(now_ns)  # what has become overdue since does not wait for this one
        self._waiting.append(request)
        self._prepare(now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """The batch that a free instance shall run now; None if it is worth waiting."""
        if self._packs:
            return self._pack()
        self._prepare(now_ns)
        self._due_ns = None
        while self._prepared:
            batch = self._first()
            if self._delay_ns and not batch.ended:
                self._merge(batch, now_ns)
            self._size -= len(batch.requests)
            self._prepare(now_ns)
            if wanted := self._wanted(batch.requests):
                return wanted
        self._due_ns = self._forming.due_ns(self._delay_ns) if self._waiting else None
        return None

    def _pack(self) -> Batch | None:
        """As many as fit together, from the front."""
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

    def _wanted(self, batch: Batch) -> Batch:
        """`batch` without those that were cancelled since they joined it."""
        gone = [request for request in batch if request.cancellation.is_cancelled]
        if not gone:
            return batch
        self._cancelled += [Refusal(request, CANCELLED) for request in gone]
        return [request for request in batch if not request.cancellation.is_cancelled]

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Nothing depends on it."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Those that were cancelled before an instance was given them."""
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

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Prepare batches ahead for so many more, or fewer."""
        self._ahead += _AHEAD * (len(added) - len(leaving))
        if not self._packs:
            self._prepare(now_ns)

    def keeps(self, instance: int) -> bool:
        """Never: any instance will do."""
        return False

    def _first(self) -> _PreparedBatch:
        """The batch that was ready first, which is to grow no more."""
        batch = self._prepared.popleft()
        if batch is self._growing:
            self._grow(None)
        return batch

    def _merge(self, batch: _PreparedBatch, now_ns: int) -> None:
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

    def _grow(self, batch: _PreparedBatch | None) -> None:
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
                    batch = _PreparedBatch()
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
