"""Which waiting requests run next, and with whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from reference_server.core.request import InferRequest
from reference_server.scheduling.work import Batch, Refusal


class DynamicBatcher:
    """Triton's dynamic batcher for one queue without limits, timeouts or priorities.

    Sizes are rows: a request counts with its `batch_size` and is never split. While all
    instances are busy the next batch is already being formed, and a batch that reached a
    preferred size with no delay configured is closed then, whatever comes after; the caller
    therefore offers each request when it arrives.

    `max_rows`: the largest batch. `preferred_rows`: sizes worth sending early; empty means
    `max_rows`. `delay_ns`: how long the oldest request may wait for others.
    """

    def __init__(self, max_rows: int, preferred_rows: tuple[int, ...], delay_ns: int) -> None:
        self._max_rows = max(1, max_rows)
        self._preferred = frozenset(preferred_rows or (self._max_rows,))
        self._largest_preferred = max(self._preferred)
        self._delay_ns = delay_ns
        self._waiting: deque[InferRequest] = deque()
        self._pending: list[InferRequest] = []
        self._reset()

    def _reset(self) -> None:
        """Forget what is known of the batch being formed; its requests are the caller's affair."""
        self._pending = []
        self._rows = 0
        self._preferred_count = 0  # requests up to the largest preferred size that was reached
        self._blocked = False  # the next request cannot join: too many rows, or another shape
        self._closed = False  # decided already; nothing joins

    def __len__(self) -> int:
        return len(self._pending) + len(self._waiting)

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Take a request at the end of the queue."""
        self._waiting.append(request)
        self._form(now_ns)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """The batch that a free instance shall run now; None if it is worth waiting."""
        self._form(now_ns)
        count = len(self._pending) if self._closed else self._decide(now_ns)
        if not count:
            return None
        batch, rest = self._pending[:count], self._pending[count:]
        self._restart(rest)
        self._form(now_ns)
        return batch

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Nothing depends on it."""

    def refused(self) -> Sequence[Refusal]:
        """None: whatever was taken runs."""
        return ()

    def next_deadline_ns(self) -> int | None:
        """When the oldest request has waited the whole delay."""
        return self._pending[0].queued_ns + self._delay_ns if self._pending else None

    def flush(self) -> None:
        """Stop waiting for company."""
        self._delay_ns = 0

    def _restart(self, rest: list[InferRequest]) -> None:
        self._waiting.extendleft(reversed(rest))
        self._reset()

    def _form(self, now_ns: int) -> None:
        """Let waiting requests join the batch; close it where Triton would."""
        if self._closed:
            return
        self._join()
        if self._delay_ns == 0 and self._preferred_count:
            rest = self._pending[self._preferred_count :]
            self._waiting.extendleft(reversed(rest))
            del self._pending[self._preferred_count :]
            self._closed = True
        elif self._blocked and self._decide(now_ns) == len(self._pending):
            self._closed = True

    def _join(self) -> None:
        while self._waiting and not self._blocked:
            request = self._waiting[0]
            rows = self._rows + request.batch_size
            if self._pending:
                if rows > self._max_rows or request.batch_key != self._pending[0].batch_key:
                    self._blocked = True
                    return
                if rows > self._largest_preferred and not self._preferred_count:
                    self._preferred_count = len(self._pending)
            self._pending.append(self._waiting.popleft())
            self._rows = rows
            if rows in self._preferred:
                self._preferred_count = len(self._pending)

    def _decide(self, now_ns: int) -> int:
        """How many of the pending requests to send now; 0 to wait."""
        if not self._pending:
            return 0
        overdue = now_ns - self._pending[0].queued_ns >= self._delay_ns
        if self._preferred_count and (self._delay_ns == 0 or not overdue):
            return self._preferred_count
        if self._blocked or self._rows >= self._largest_preferred or overdue:
            return len(self._pending)
        return 0
