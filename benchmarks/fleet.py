"""A simulated fleet of servers behind an autoscaler, with the server's own dynamic batcher.

Each replica is the queue of a model with `dynamic_batching` and one instance. Time is simulated;
the real batcher decides which requests are executed together, and when.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from benchmarks.queues import NullSink
from reference_server.autoscaling import Goal, Peak, replicas_wanted
from reference_server.core.request import InferRequest
from reference_server.scheduling.dynamic_batcher import DynamicBatcher
from reference_server.scheduling.work_queue import Batch, WorkQueue

_S = 1_000_000_000

SCRAPE_S = 5
RATE_S = 30
"""Interval of the rates in the rules of Prometheus."""
DECIDE_S = 15
TOLERANCE = 0.1
CALM_S = 300
"""Defaults of a HorizontalPodAutoscaler: interval, tolerance, stabilization window."""
LEAST = 2
"""Smallest number of replicas."""


@dataclass(frozen=True)
class Model:
    """Execution times of a model, and its batching."""

    base_ns: int
    row_ns: int
    largest: int
    delay_ns: int

    @property
    def most_per_second(self) -> float:
        """Requests per second of one instance with full batches."""
        return self.largest * 1e9 / (self.base_ns + self.largest * self.row_ns)

    def queue(self) -> WorkQueue:
        """Return the queue of a server with one instance."""
        return DynamicBatcher(self.largest, (), self.delay_ns)


class Replica:
    """A server with one model. `in_flight` counts its waiting and executing requests."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._work = model.queue()
        self._batch: Batch | None = None
        self._ends_ns = 0
        self.in_flight = 0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return self.in_flight - len(self._batch or ())

    def add(self, request: InferRequest, now_ns: int) -> int | None:
        """Queue a request. Return the time of the next `poll`, if it is known."""
        self.in_flight += 1
        self._work.offer(request, now_ns)
        return self._start(now_ns) if self._batch is None else None

    def poll(self, now_ns: int) -> tuple[Batch, int | None]:
        """Return the batch that is done by now, and the time of the next `poll`, if known."""
        batch = self._batch
        if batch is None:  # the batcher's deadline
            return [], self._start(now_ns)
        if now_ns < self._ends_ns:  # a request that arrived since has started the batch
            return [], None
        self._batch = None
        self.in_flight -= len(batch)
        self._work.finished(0, batch, [], now_ns)
        return batch, self._start(now_ns)

    def _start(self, now_ns: int) -> int | None:
        self._batch = self._work.take(0, now_ns)
        if self._batch is None:
            return self._work.next_deadline_ns()
        self._ends_ns = now_ns + self._model.base_ns + len(self._batch) * self._model.row_ns
        return self._ends_ns


class Reading(NamedTuple):
    """The sums of all replicas' metrics at one time."""

    answered: int = 0
    queued_s: float = 0.0
    computed_s: float = 0.0
    pending: int = 0


class Situation(NamedTuple):
    """The input of a rule: two readings, their times, and the number of replicas."""

    before: Reading
    now: Reading
    before_s: float
    now_s: float
    replicas: int


Rule = Callable[[Situation], float]
"""Returns the factor by which the number of replicas should change."""


def ratio(goal: Goal) -> Rule:
    """Return the usual rule: queue time over compute time, whose target is 1."""

    def decide(seen: Situation) -> float:
        computed = seen.now.computed_s - seen.before.computed_s
        return (seen.now.queued_s - seen.before.queued_s) / computed if computed else 0.0

    return decide


def work(goal: Goal) -> Rule:
    """Return the rule of observe/autoscaling.yml: the rows to execute over the capacity."""
    peak = Peak()

    def decide(seen: Situation) -> float:
        before, now, replicas = seen.before, seen.now, seen.replicas
        arrived = now.answered - before.answered + now.pending - before.pending
        come_per_s = arrived / (seen.now_s - seen.before_s)
        most = peak.seen(seen.now_s, come_per_s)
        return replicas_wanted(come_per_s, most, now.pending, replicas, goal) / replicas

    return decide


RULES: Mapping[str, Callable[[Goal], Rule]] = {"ratio": ratio, "work": work}
"""Factories of rules: a rule may keep state, so each fleet needs its own."""


class Autoscaler:
    """A HorizontalPodAutoscaler with its default behavior.

    It at most doubles the replicas or adds 4 every 15 s, and removes replicas only if fewer would
    have been enough for 5 minutes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._wanted: deque[tuple[float, int]] = deque()

    def decide(self, at_s: float, replicas: int, factor: float) -> int:
        """Return the new number of replicas."""
        wanted = replicas if abs(factor - 1) <= TOLERANCE else math.ceil(replicas * factor)
        self._wanted.append((at_s, wanted))
        while self._wanted[0][0] < at_s - CALM_S:
            self._wanted.popleft()
        calm = max(count for _, count in self._wanted)
        if wanted < replicas:
            wanted = min(replicas, calm)
        wanted = min(wanted, max(2 * replicas, replicas + 4))
        return max(LEAST, min(self._most, wanted))


@dataclass
class Second:
    """Counts of one second: requests by outcome, and the replicas at its end."""

    arrived: int = 0
    answered: int = 0
    missed: int = 0
    replicas: int = 0


@dataclass
class Outcome:
    """The counts of each second, the paid replica seconds, and the last reading.

    Replicas are paid for while they start and while they shut down.
    """

    seconds: list[Second] = field(default_factory=list)
    replica_s: float = 0.0
    last: Reading = field(default_factory=Reading)

    def missed(self, since_s: int = 0) -> float:
        """Return the share of the requests answered since then that missed the latency goal."""
        seconds = self.seconds[since_s:]
        answered = sum(each.answered for each in seconds)
        return sum(each.missed for each in seconds) / max(1, answered)


def simulate(
    model: Model,
    rule: Rule,
    arrivals: Iterator[Sequence[int]],
    goal: Goal,
    *,
    replicas: int,
    most: int,
    start_s: float,
) -> Outcome:
    """Simulate a fleet whose size the rule controls.

    Args:
        model: Execution times and batching.
        rule: The autoscaling rule.
        arrivals: For each second the arrival times of its requests, in nanoseconds.
        goal: The latency goal.
        replicas: Initial number of replicas.
        most: Largest number of replicas.
        start_s: Seconds until a new replica serves.
    """
    serving = [Replica(model) for _ in range(replicas)]
    starting: deque[float] = deque()  # when each of them serves
    ending: list[Replica] = []
    events: list[tuple[int, int, Replica]] = []
    numbers = itertools.count()
    autoscaler, outcome, second = Autoscaler(most), Outcome(), Second()
    answered, queued_ns, computed_ns = 0, 0, 0
    goal_ns = goal.latency_s * _S
    readings: deque[tuple[int, Reading]] = deque([(0, Reading())])

    def run_until(end_ns: float) -> None:
        nonlocal answered, queued_ns, computed_ns
        while events and events[0][0] <= end_ns:
            now_ns, _, replica = heapq.heappop(events)
            batch, again_ns = replica.poll(now_ns)
            if batch:
                lasted_ns = model.base_ns + len(batch) * model.row_ns
                latencies = [now_ns - request.queued_ns for request in batch]
                answered += len(batch)
                computed_ns += len(batch) * lasted_ns
                queued_ns += sum(latencies) - len(batch) * lasted_ns
                second.answered += len(batch)
                second.missed += sum(latency > goal_ns for latency in latencies)
            if again_ns is not None:
                heapq.heappush(events, (again_ns, next(numbers), replica))

    for at_s, coming in enumerate(arrivals):
        while starting and starting[0] <= at_s:
            starting.popleft()
            serving.append(Replica(model))
        second = Second(arrived=len(coming))
        outcome.seconds.append(second)
        for now_ns in coming:
            run_until(now_ns)
            replica = min(serving, key=_in_flight)
            again_ns = replica.add(InferRequest("m", {}, NullSink(), queued_ns=now_ns), now_ns)
            if again_ns is not None:
                heapq.heappush(events, (again_ns, next(numbers), replica))
        ended_s = at_s + 1
        run_until(ended_s * _S)
        ending = [replica for replica in ending if replica.in_flight]
        paid = len(serving) + len(starting) + len(ending)
        second.replicas, outcome.replica_s = paid, outcome.replica_s + paid
        if ended_s % SCRAPE_S == 0:
            pending = sum(replica.waiting for replica in serving)
            now = Reading(answered, queued_ns / _S, computed_ns / _S, pending)
            readings.append((ended_s, now))
            outcome.last = now
            while readings[0][0] < ended_s - RATE_S:
                readings.popleft()
        if ended_s % DECIDE_S == 0:
            read_s, before = readings[0]
            factor = rule(Situation(before, readings[-1][1], read_s, ended_s, len(serving)))
            count = len(serving) + len(starting)
            wanted = autoscaler.decide(ended_s, count, factor * len(serving) / count)
            starting.extend([ended_s + start_s] * (wanted - count))
            while len(serving) + len(starting) > wanted:
                if starting:
                    starting.pop()
                else:
                    ending.append(serving.pop())
    return outcome


_in_flight = attrgetter("in_flight")
