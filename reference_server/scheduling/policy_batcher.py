"""The dynamic batcher with queue policies: priority levels, size limits and timeouts."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence

from reference_server.config.scheduler_settings import DynamicBatching, QueuePolicy
from reference_server.core.errors import unavailable
from reference_server.core.request import InferRequest
from reference_server.scheduling.dynamic_batcher import BatchSizes, Forming
from reference_server.scheduling.work_queue import CANCELLED, Batch, Refusal

_NS_PER_US = 1000
#: Timeouts up to this one expire before a batcher first sees the request, even on an idle model. In
#: Triton another thread must wake up first: with a timeout of 5 us it refused 8 of 20 requests
#: over HTTP and all over gRPC or from models; with 20 us it refused one.
_EXPIRES_AT_ONCE_US = 5
_EXPIRED = unavailable("Request timeout expired")


class _PolicyQueue:
    """The requests of one priority level, in order of arrival, under one policy. Not thread-safe.

    Expired requests that the policy only delays come after all others.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._waiting: OrderedDict[int, InferRequest] = OrderedDict()
        self._delayed: deque[InferRequest] = deque()
        self._expiries: list[tuple[int, int]] = []  # a heap of (time, number of the request)
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._delayed)

    def offer(self, request: InferRequest) -> None:
        """Append a request. Raises ServerError UNAVAILABLE if the queue is full."""
        policy = self._policy
        if policy.max_size and len(self) >= policy.max_size:
            raise unavailable(f"{request.label} Exceeds maximum queue size")
        self._arrivals += 1
        self._waiting[self._arrivals] = request
        timeout_us = policy.timeout_us
        if policy.overridable and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        if timeout_us:
            waits_us = 0 if timeout_us <= _EXPIRES_AT_ONCE_US else timeout_us
            expiry_ns = request.queued_ns + waits_us * _NS_PER_US
            heapq.heappush(self._expiries, (expiry_ns, self._arrivals))

    def expire(self, now_ns: int) -> list[Refusal]:
        """Apply the policy to requests that have expired. Return the refused ones."""
        expired: list[int] = []
        while self._expiries and self._expiries[0][0] <= now_ns:
            expired.append(heapq.heappop(self._expiries)[1])
        # The heap is ordered by time; requests leave in order of arrival.
        found = [self._waiting.pop(number) for number in sorted(expired) if number in self._waiting]
        if not self._policy.delays:
            return [Refusal(request, _EXPIRED) for request in found]
        # The policy is DELAY: expired requests come after all others of their level.
        self._delayed.extend(found)
        return []

    def next_expiry_ns(self) -> int | None:
        """Return when the next request is refused; None if no request will be."""
        return self._expiries[0][0] if self._expiries and not self._policy.delays else None

    def __iter__(self) -> Iterator[InferRequest]:
        yield from self._waiting.values()
        yield from self._delayed

    def pop(self) -> InferRequest:
        """Remove and return the first request."""
        if not self._waiting:
            return self._delayed.popleft()
        _, request = self._waiting.popitem(last=False)
        # The heap still contains removed requests; its first entry must be a waiting one.
        while self._expiries and self._expiries[0][1] not in self._waiting:
            heapq.heappop(self._expiries)
        return request


class _PriorityQueue:
    """All waiting requests of one model: a queue for each priority level, in order of level."""

    def __init__(self, settings: DynamicBatching) -> None:
        self._settings = settings
        # There may be 2^64 levels, so only levels with requests have a queue.
        self._levels: list[int] = []  # ascending
        self._queues: dict[int, _PolicyQueue] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def offer(self, request: InferRequest) -> None:
        """Append a request to its level. Raises ServerError if the level is full."""
        settings = self._settings
        known = 1 <= request.priority <= settings.levels
        default = settings.default_level if settings.levels else 0
        level = request.priority if known else default
        if level not in self._queues:
            policy = settings.policies.get(level, settings.default_policy)
            self._queues[level] = _PolicyQueue(policy)
            bisect.insort(self._levels, level)
        self._queues[level].offer(request)

    def expire(self, now_ns: int) -> list[Refusal]:
        """Apply the policies to requests that have expired. Return the refused ones."""
        refused = []
        for level in [*self._levels]:
            refused += self._queues[level].expire(now_ns)
            self._drop_if_empty(level)
        return refused

    def next_expiry_ns(self) -> int | None:
        """Return when the next request is refused; None if no request will be."""
        times = [queue.next_expiry_ns() for queue in self._queues.values()]
        return min((time for time in times if time is not None), default=None)

    def __iter__(self) -> Iterator[InferRequest]:
        return itertools.chain.from_iterable(self._queues[level] for level in self._levels)

    def pop(self) -> InferRequest:
        """Remove and return the first request."""
        first = self._levels[0]
        request = self._queues[first].pop()
        self._drop_if_empty(first)
        return request

    def _drop_if_empty(self, level: int) -> None:
        if not len(self._queues[level]):
            del self._queues[level]
            self._levels.remove(level)


class PolicyBatcher:
    """A batcher that forms a batch from the first requests when an instance asks for one.

    Sizes, delay and `max_rows` have the same meaning as for `DynamicBatcher`. No batches are
    prepared ahead.
    """

    takes_all = False

    def __init__(self, max_rows: int, settings: DynamicBatching) -> None:
        self._sizes = BatchSizes(max_rows, settings.preferred_batch_sizes)
        self._delay_ns = settings.max_queue_delay_us * 1000
        self._queue = _PriorityQueue(settings)
        self._due_ns: int | None = None
        self._refused: list[Refusal] = []

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, request: InferRequest, now_ns: int) -> None:
        """Add a request. Raises ServerError UNAVAILABLE if its queue is full."""
        self._refused += self._queue.expire(now_ns)
        self._queue.offer(request)

    def take(self, instance: int, now_ns: int) -> Batch | None:
        """Return the batch that an idle instance executes now; None to wait for more requests."""
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
        """Do nothing: no decision depends on it."""

    def refused(self, now_ns: int) -> Sequence[Refusal]:
        """Return the requests that expired or were cancelled."""
        refused, self._refused = self._refused + self._queue.expire(now_ns), []
        return refused

    def next_deadline_ns(self) -> int | None:
        """Return when the next request expires, or when a delay ends that an instance waits for."""
        expiry_ns = self._queue.next_expiry_ns()
        if expiry_ns is None or self._due_ns is None:
            return self._due_ns if expiry_ns is None else expiry_ns
        return min(expiry_ns, self._due_ns)

    def flush(self) -> None:
        """Stop waiting for more requests."""
        self._delay_ns = 0

    def resize(self, added: Collection[int], leaving: Collection[int], now_ns: int) -> None:
        """Do nothing: any instance can execute any request."""

    def keeps(self, instance: int) -> bool:
        """Return False: requests are not bound to instances."""
        return False

    def _drop_cancelled(self) -> None:
        while len(self._queue) and next(iter(self._queue)).cancellation.is_cancelled:
            self._refused.append(Refusal(self._queue.pop(), CANCELLED))

    def _remove(self, batch: Batch) -> None:
        """Remove a batch from the queue, and refuse the cancelled requests between its requests."""
        for request in batch:
            while (first := self._queue.pop()) is not request:
                self._refused.append(Refusal(first, CANCELLED))
