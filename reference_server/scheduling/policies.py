"""Queues that refuse, expire and prefer: what waits, in the order in which it is to be served."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator

from reference_server.config.scheduler_settings import DynamicBatching, QueuePolicy
from reference_server.core.errors import unavailable
from reference_server.core.request import InferRequest
from reference_server.scheduling.work import Refusal

_NS_PER_US = 1000
_EXPIRED = unavailable("Request timeout expired")


class PolicyQueue:
    """The requests of one level, first come first served, under one policy. Not thread-safe.

    Those that have expired and are only delayed come after all others.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._waiting: OrderedDict[int, InferRequest] = OrderedDict()
        self._delayed: deque[InferRequest] = deque()
        self._expiries: list[tuple[int, int]] = []  # a heap: when, and which of those waiting
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._delayed)

    def offer(self, request: InferRequest) -> None:
        """Take a request at the end. Raises ServerError UNAVAILABLE if the queue is full."""
        policy = self._policy
        if policy.max_size and len(self) >= policy.max_size:
            raise unavailable(f"{request.label} Exceeds maximum queue size")
        self._tickets += 1
        self._waiting[self._tickets] = request
        timeout_us = policy.timeout_us
        if policy.overridable and 0 < request.timeout_us < timeout_us:
            timeout_us = request.timeout_us
        if timeout_us:
            expiry_ns = request.queued_ns + timeout_us * _NS_PER_US
            heapq.heappush(self._expiries, (expiry_ns, self._tickets))

    def expire(self, now_ns: int) -> list[Refusal]:
        """Do what the policy says to those whose time is over; returns those refused."""
        expired: list[int] = []
        while self._expiries and self._expiries[0][0] <= now_ns:
            expired.append(heapq.heappop(self._expiries)[1])
        found = [self._waiting.pop(ticket) for ticket in sorted(expired) if ticket in self._waiting]
        if not self._policy.delays:
            return [Refusal(request, _EXPIRED) for request in found]
        self._delayed.extend(found)
        return []

    def next_expiry_ns(self) -> int | None:
        """When the next request is refused; None if none ever is."""
        return self._expiries[0][0] if self._expiries and not self._policy.delays else None

    def __iter__(self) -> Iterator[InferRequest]:
        yield from self._waiting.values()
        yield from self._delayed

    def pop(self) -> InferRequest:
        """Take out the first."""
        if not self._waiting:
            return self._delayed.popleft()
        _, request = self._waiting.popitem(last=False)
        while self._expiries and self._expiries[0][1] not in self._waiting:
            heapq.heappop(self._expiries)
        return request


class PriorityQueue:
    """All that waits for one model: a queue for each level, the first level first."""

    def __init__(self, settings: DynamicBatching) -> None:
        self._settings = settings
        levels = range(1, settings.levels + 1) if settings.levels else (0,)
        self._queues = {
            level: PolicyQueue(settings.policies.get(level, settings.default_policy))
            for level in levels
        }

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def offer(self, request: InferRequest) -> None:
        """Take a request at the end of its level. Raises ServerError if that is full."""
        settings = self._settings
        known = 1 <= request.priority <= settings.levels
        level = request.priority if known else settings.default_level
        self._queues[level if settings.levels else 0].offer(request)

    def expire(self, now_ns: int) -> list[Refusal]:
        """Do what the policies say to those whose time is over; returns those refused."""
        return [refusal for queue in self._queues.values() for refusal in queue.expire(now_ns)]

    def next_expiry_ns(self) -> int | None:
        """When the next request is refused; None if none ever is."""
        times = [queue.next_expiry_ns() for queue in self._queues.values()]
        return min((time for time in times if time is not None), default=None)

    def __iter__(self) -> Iterator[InferRequest]:
        return itertools.chain.from_iterable(self._queues.values())

    def pop(self) -> InferRequest:
        """Take out the first."""
        return next(queue for queue in self._queues.values() if len(queue)).pop()
