"""The dynamic batcher with queue policies: priority levels, size limits and timeouts."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from reference_server.config.scheduler_settings import DynamicBatching, QueuePolicy
from reference_server.core.errors import unavailable
from reference_server.core.request import InferRequest
from reference_server.scheduling.dynamic_batcher import BatchSizes, Forming
from reference_server.scheduling.work_queue import CANCELLED, Batch, Refusal

_NS_PER_US = 1000
#: Timeouts up to this value expire before a batcher first sees the request, even on an idle model.
#: In Triton another thread must wake up first: with a timeout of 5 us Triton refused 8 of 20
#: requests over HTTP, and all requests over gRPC or from models; with 20 us it refused one request.
_EXPIRES_AT_ONCE_US = 5
_EXPIRED = unavailable("Request timeout expired")


class _Waiting(NamedTuple):
    """A waiting request; `expiry_ns` is 0 if the request never expires or is already delayed."""

    request: InferRequest
    expiry_ns: int = 0
    is_delayed: bool = False


class _PolicyQueue:
    """The requests of one priority level, in order of arrival, under one policy. Not thread-safe.

    Expired requests that the policy only delays come after all other requests.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._delayed: deque[_Waiting] = deque()
        self._expiries: list[tuple[int, int]] = []  # a heap of (time, number of the request)
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._delayed)

    @property
    def delays(self) -> bool:
        """True if expired requests are delayed, false if they are refused."""
        return self._policy.delays

    def offer(self, request: InferRequest) -> None:
        """Append a request. Raises ServerError UNAVAILABLE if the queue is full."""
        policy = self._policy
        if policy.max_size and len(self) >= policy.max_size:
            raise unavailable(f"{request.label} Exceeds maximum queue size")
        self._arrivals += 1
        timeout_us = policy.timeout_us
        if policy.overridable and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        expiry_ns = 0
        if timeout_us:
            waits_us = 0 if timeout_us <= _EXPIRES_AT_ONCE_US else timeout_us
            expiry_ns = request.queued_ns + waits_us * _NS_PER_US
            heapq.heappush(self._expiries, (expiry_ns, self._arrivals))
        self._waiting[self._arrivals] = _Waiting(request, expiry_ns)

    def expire(self, now_ns: int) -> list[InferRequest]:
        """Delay the requests that have expired, or remove and return them."""
        expired: list[int] = []
        while self._expiries and self._expiries[0][0] <= now_ns:
            expired.append(heapq.heappop(self._expiries)[1])
        # The heap is ordered by time; requests leave in order of arrival.
        found = [
            self._waiting.pop(number).request
            for number in sorted(expired)
            if number in self._waiting
        ]
        if not self.delays:
            return found
        self._delayed.extend(_Waiting(request, is_delayed=True) for request in found)
        return []

    def next_expiry_ns(self) -> int | None:
        """Return when the next request is refused; None if none will be refused."""
        return self._expiries[0][0] if self._expiries and not self.delays else None

    def __iter__(self) -> Iterator[_Waiting]:
        yield from self._waiting.values()
        yield from self._delayed

    def pop(self) -> InferRequest:
        """Remove and return the first request."""
        if not self._waiting:
            return self._delayed.popleft().request
        _, waiting = self._waiting.popitem(last=False)
        # The heap still contains removed requests; its first entry must be a waiting request.
        while self._expiries and self._expiries[0][1] not in self._waiting:
            heapq.heappop(self._expiries)
        return waiting.request


class _PriorityQueue:
    """All waiting requests of one model: a queue for each priority level, in order of level."""

    def __init__(self, settings: DynamicBatching) -> None:
        self._settings = settings
        # There may be 2^64 levels, so only levels with requests have a queue.
        self._levels: list[int] = []  # ascending
        self._queues: dict[int, _PolicyQueue] = {}
        self.rows = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def offer(self, request: InferRequest) -> int:
        """Append a request to its level; return the level. Raises ServerError if it is full."""
        settings = self._settings
        known = 1 <= request.priority <= settings.levels
        default = settings.default_level if settings.levels else 0
        level = request.priority if known else default
        if level not in self._queues:
            policy = settings.policies.get(level, settings.default_policy)
            self._queues[level] = _PolicyQueue(policy)
            bisect.insort(self._levels, level)
        self._queues[level].offer(request)
        self.rows += request.batch_size
        return level

    def expire(self, now_ns: int, *, delays: bool) -> list[Refusal]:
        """Return the requests that have expired and are refused.

        With `delays`, expired requests that the policy only delays are moved.
        """
        refused: list[Refusal] = []
        for level in [*self._levels]:
            queue = self._queues[level]
            if delays or not queue.delays:
                refused += [Refusal(request, _EXPIRED) for request in queue.expire(now_ns)]
                self._drop_if_empty(level)
        self.rows -= sum(refusal.request.batch_size for refusal in refused)
        return refused

    def next_expiry_ns(self) -> int | None:
        """Return when the next request is refused; None if none will be refused."""
        times = [queue.next_expiry_ns() for queue in self._queues.values()]
        return min((time for time in times if time is not None), default=None)

    def __iter__(self) -> Iterator[tuple[int, _Waiting]]:
        for level in self._levels:
            for waiting in self._queues[level]:
                yield level, waiting

    def pop(self) -> InferRequest:
        """Remove and return the first request."""
        first = self._levels[0]
        request = self._queues[first].pop()
        self.rows -= request.batch_size
        self._drop_if_empty(first)
        return request

    def _drop_if_empty(self, level: int) -> None:
        if not len(self._queues[level]):
            del self._queues[level]
            self._levels.remove(level)


class _Pending:
    """The requests at the front of the queue that have joined the next batch.

    They keep their places until a joined request expires, or a request arrives that belongs before
    a joined request. Then the batch is formed anew.
    """

    def __init__(self, sizes: BatchSizes) -> None:
        self.forming = Forming(sizes)
        self.joined: Batch = []
        self.passed = 0  # requests of the queue, including cancelled requests
        self.expiry_ns = 0  # the earliest expiry; 0: never
        self._last = 0, False  # the last request's level, and whether it is delayed

    def join(self, level: int, waiting: _Waiting) -> bool:
        """Add the next request of the queue. Return False if it has to wait for another batch."""
        if not waiting.request.cancellation.is_cancelled:
            if not self.forming.join(waiting.request):
                return False
            self.joined.append(waiting.request)
            if waiting.expiry_ns and not 0 < self.expiry_ns <= waiting.expiry_ns:
                self.expiry_ns = waiting.expiry_ns
            self._last = level, waiting.is_delayed
        self.passed += 1
        return True

    def is_before_end(self, level: int) -> bool:
        """Return whether a new request of this level belongs before the end of the batch."""
        last, is_delayed = self._last
        return level < last or (level == last and is_delayed)


class PolicyBatcher:
    """A batcher that forms a batch from the first requests when an instance takes it.

    Sizes, delay and `max_rows` have the same meaning as for `DynamicBatcher`. No batches are
    prepared ahead. While an idle instance waits for more requests, the batcher looks at the queue
    only at certain moments, as Triton does (`GetDynamicBatch` in its core's
    src/dynamic_batch_scheduler.cc): when the delay ends, when a request of the pending batch
    expires, and when the waiting requests have enough rows for the next preferred size. Requests
    that the batcher refuses before it waits again are answered at the end of that wait.

    Args:
        max_rows: The largest batch.
        settings: The other settings of the batcher.
        compares_shapes: Look at the queue for each request that arrives, since its shape may end
            the pending batch.
    """

    takes_all = False

    def __init__(
        self, max_rows: int, settings: DynamicBatching, *, compares_shapes: bool = False
    ) -> None:
        self._sizes = BatchSizes(max_rows, settings.preferred_batch_sizes)
        self._delay_ns = settings.max_queue_delay_us * 1000
        self._compares_shapes = compares_shapes
        self._queue = _PriorityQueue(settings)
        self._pending = _Pending(self._sizes)
        self._due_ns: int | None = None  # when to look again, if an idle instance waits
        self._wanted_rows = 0  # the number of waiting rows from which to look earlier
        self._refused: list[Refusal] = []
        self._refused_next: list[Refusal] = []  # answered after the next look

    def __len__(self) -> int:
        return len(self._queue) + len(self._refused_next)

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Add a request. Raises ServerError UNAVAILABLE if its queue is full."""
        if self._due_ns is None:
            self._refused += self._queue.expire(now_ns, delays=False)
        level = self._queue.offer(request)
        if self._pending.is_before_end(level):
            self._pending = _Pending(self._sizes)
        if self._compares_shapes or self._queue.rows >= self._wanted_rows:
            self._due_ns = None

    def take(self, instance: int, now_ns: int) -> Batch | None:
        if self._due_ns is not None and now_ns < self._due_ns:
            return None
        self._due_ns = None
        refused, self._refused_next = self._refused_next, []
        self._refused += refused
        while self._form_batch(now_ns):
            pending, self._pending = self._pending, _Pending(self._sizes)
            batch = pending.joined[: pending.forming.count(now_ns, self._delay_ns)]
            if batch := self._remove_batch(batch):
                return batch
        return None

    def _form_batch(self, now_ns: int) -> bool:
        """Form the pending batch; return whether an instance can execute it, or a part of it."""
        if self._pending.expiry_ns <= now_ns:
            self._pending = _Pending(self._sizes)
        pending = self._pending
        refused = self._queue.expire(now_ns, delays=True)
        if not pending.joined:
            refused += self._pop_cancelled()
        for level, waiting in itertools.islice(self._queue, pending.passed, None):
            if not pending.join(level, waiting):
                break
        sends = pending.forming.count(now_ns, self._delay_ns) > 0
        if pending.joined and not sends:
            due_ns = pending.forming.due_ns(self._delay_ns)
            self._due_ns = min(due_ns, pending.expiry_ns) if pending.expiry_ns else due_ns
            self._wanted_rows = self._sizes.next_preferred(pending.forming.rows)
            self._refused_next = refused
        else:
            self._refused += refused
        return sends

    def finished(self, instance: int, batch: Batch, again: Batch, now_ns: int) -> None:
        """Do nothing: no decision depends on finished batches."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the requests that expired or were cancelled."""
        if self._due_ns is None:
            self._refused += self._queue.expire(now_ns, delays=False)
        refused, self._refused = self._refused, []
        return refused

    def next_deadline_ns(self) -> int | None:
        """Return when to look at the queue again, or when the next request is refused."""
        return self._queue.next_expiry_ns() if self._due_ns is None else self._due_ns

    def flush(self) -> None:
        self._delay_ns = 0
        self._due_ns = None

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Do nothing: any instance can execute any request."""

    def keeps(self, instance: int) -> bool:
        """Return False: requests are not bound to instances."""
        return False

    def _pop_cancelled(self) -> list[Refusal]:
        """Remove the cancelled requests at the front of the queue."""
        refused: list[Refusal] = []
        while (first := next(iter(self._queue), None)) is not None:
            if not first[1].request.cancellation.is_cancelled:
                break
            refused.append(Refusal(self._queue.pop(), CANCELLED))
        return refused

    def _remove_batch(self, batch: Batch) -> Batch:
        """Remove a batch from the queue; refuse the cancelled requests in and before it."""
        removed: Batch = []
        for request in batch:
            while (first := self._queue.pop()) is not request:
                self._refused.append(Refusal(first, CANCELLED))
            if request.cancellation.is_cancelled:
                self._refused.append(Refusal(request, CANCELLED))
            else:
                removed.append(request)
        return removed
