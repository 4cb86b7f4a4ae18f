"""A fleet of servers under a million requests a minute, simulated with the server's own batcher.

    python -m benchmarks.fleet                          a simulated minute for each size
    python -m benchmarks.fleet --replicas 7 8 --per-minute 500000 --seconds 10

Requests come at random (Poisson) and go to the replica that has the fewest. Each replica is the
queue of a model with `dynamic_batching` and an instance that takes `--base-ms` for an execution and
`--row-ms` more for each request in it; time is simulated, decisions are those of the real objects.
The table shows what clients would see, and how fast the decisions are made.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from benchmarks.instruments import percentile, print_machine_facts, print_table
from benchmarks.queues import Nobody
from reference_server.core.request import InferRequest
from reference_server.scheduling.dynamic_batcher import DynamicBatcher
from reference_server.scheduling.work_queue import Batch, WorkQueue

_MS = 1_000_000


@dataclass(frozen=True)
class Model:
    """How long an instance takes, and how it is batched."""

    base_ns: int
    row_ns: int
    largest: int
    delay_ns: int

    @property
    def most_per_second(self) -> float:
        """What one instance can do, in full batches."""
        return self.largest * 1e9 / (self.base_ns + self.largest * self.row_ns)

    def queue(self) -> WorkQueue:
        """A queue like that of a server with one instance."""
        return DynamicBatcher(self.largest, (), self.delay_ns)


class Replica:
    """A server with one model: `in_flight` requests wait there or are executed."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._work = model.queue()
        self._batch: Batch | None = None
        self._ends_ns = 0
        self.in_flight = 0
        self.executions = 0
        self.busy_ns = 0

    @property
    def waiting(self) -> int:
        """How many are not being executed."""
        return self.in_flight - len(self._batch or ())

    def come(self, request: InferRequest, now_ns: int) -> int | None:
        """Take a request in; when to look again, if that is known."""
        self.in_flight += 1
        self._work.offer(request, now_ns)
        return self._begin(now_ns) if self._batch is None else None

    def look(self, now_ns: int) -> tuple[Batch, int | None]:
        """Who is answered by now; when to look again, if that is known."""
        batch = self._batch
        if batch is None:  # the batcher has asked to be asked
            return [], self._begin(now_ns)
        if now_ns < self._ends_ns:  # and has been asked since by who came
            return [], None
        self._batch = None
        self.in_flight -= len(batch)
        self._work.finished(0, batch, [], now_ns)
        return batch, self._begin(now_ns)

    def _begin(self, now_ns: int) -> int | None:
        self._batch = self._work.take(0, now_ns)
        if self._batch is None:
            return self._work.next_deadline_ns()
        lasts_ns = self._model.base_ns + len(self._batch) * self._model.row_ns
        self._ends_ns = now_ns + lasts_ns
        self.busy_ns += lasts_ns
        self.executions += 1
        return self._ends_ns


def simulate(model: Model, replicas: int, arrivals_ns: Sequence[int]) -> Outcome:
    """Let a fleet serve requests that come at these times, which rise."""
    fleet = [Replica(model) for _ in range(replicas)]
    latencies_ms: list[float] = []
    events: list[tuple[int, int, Replica]] = []
    numbers = itertools.count()

    def look_until(end_ns: float) -> None:
        while events and events[0][0] <= end_ns:
            now_ns, _, replica = heapq.heappop(events)
            answered, again_ns = replica.look(now_ns)
            latencies_ms.extend((now_ns - request.queued_ns) / _MS for request in answered)
            if again_ns is not None:
                heapq.heappush(events, (again_ns, next(numbers), replica))

    for now_ns in arrivals_ns:
        look_until(now_ns)
        replica = min(fleet, key=_least)
        again_ns = replica.come(InferRequest("m", {}, Nobody(), queued_ns=now_ns), now_ns)
        if again_ns is not None:
            heapq.heappush(events, (again_ns, next(numbers), replica))
    look_until(math.inf)
    return Outcome(fleet, latencies_ms)


_least = attrgetter("in_flight")


class Outcome(NamedTuple):
    """The replicas in the end, and the latencies in the order of the answers."""

    fleet: list[Replica]
    latencies_ms: list[float]


def arrivals(per_second: float, seconds: float, seed: int) -> list[int]:
    """When requests come that know nothing of each other, in ns."""
    gaps = np.random.default_rng(seed).exponential(1e9 / per_second, round(per_second * seconds))
    return np.cumsum(gaps).astype(np.int64).tolist()


def main() -> None:
    """Simulate fleets of several sizes, and print a line for each."""
    options = parse_arguments()
    print_machine_facts()
    model = Model(
        *(round(ms * _MS) for ms in (options.base_ms, options.row_ms)),
        options.largest,
        round(options.delay_ms * _MS),
    )
    per_second = options.per_minute / 60
    print(
        f"{options.per_minute:,} requests a minute; a replica can execute "
        f"{model.most_per_second * 60:,.0f} in full batches of {model.largest}"
    )
    coming = arrivals(per_second, options.seconds, options.seed)
    rows = []
    for replicas in options.replicas:
        began = time.perf_counter()
        fleet, latencies = simulate(model, replicas, coming)
        took = time.perf_counter() - began
        executions = sum(each.executions for each in fleet)
        busy = sum(each.busy_ns for each in fleet) / (replicas * options.seconds * 1e9)
        figures = [f"{percentile(latencies, share):.1f}" for share in (50, 99)]
        rows.append(
            [replicas, f"{len(latencies):,}", *figures, f"{len(latencies) / executions:.1f}",
             f"{busy:.0%}", f"{took:.1f}", f"{len(latencies) / took:,.0f}"]
        )  # fmt: skip
    headings = ("replicas", "answered", "p50 ms", "p99 ms", "batch", "busy", "took s", "per second")
    print_table(headings, rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--replicas", nargs="+", type=int, default=[6, 7, 8, 12, 24, 48])
    parser.add_argument("--per-minute", type=int, default=1_000_000, metavar="REQUESTS")
    parser.add_argument("--seconds", type=float, default=60.0, help="that are simulated (60)")
    parser.add_argument("--base-ms", type=float, default=2.0, help="of an execution (2)")
    parser.add_argument("--row-ms", type=float, default=0.25, help="of each request in it (0.25)")
    parser.add_argument("--largest", type=int, default=32, help="max_batch_size (32)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="max_queue_delay (0)")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
