"""Batches on their way to an instance: one being formed, and those that are ready."""

from __future__ import annotations

from collections.abc import Hashable

from reference_server.core.request import InferRequest
from reference_server.scheduling.work import Batch


class BatchSizes:
    """How large batches may and should be, in rows.

    `largest` is the largest batch, `preferred` the sizes worth sending early: none means
    `largest`. A model without batches (0) runs each request alone.
    """

    def __init__(self, largest: int, preferred: tuple[int, ...] = ()) -> None:
        self.largest = max(1, largest)
        self.preferred = frozenset(preferred or (self.largest,))
        self.largest_preferred = max(self.preferred)


class Prepared:
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

    def __init__(self, sizes: BatchSizes, base: Prepared | None = None) -> None:
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
            if rows > sizes.largest_preferred and not self._preferred_count:
                self._preferred_count = self.joined
                self.saturated = True
            if rows > sizes.largest:
                self._blocked = True
            elif request.batch_key != self._key:
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
