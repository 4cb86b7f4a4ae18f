"""Two autoscaling rules on the same traffic, simulated with the server's own batcher.

    python -m benchmarks.autoscaling --plot docs/images/autoscaling.png     half an hour
    python -m benchmarks.autoscaling --per-minute 20000 --minutes 30

Requests go to the replica that has the fewest; each replica is the queue of a model with
`dynamic_batching` and an instance (`benchmarks.fleet`). Prometheus looks every 5 s, a
HorizontalPodAutoscaler decides every 15 s with its defaults, a new replica serves after
`--start-s`, one that is taken away answers what it has. Time is simulated; which requests are
executed together, and when, is decided by the real objects.

`ratio` is the usual rule: the time in the queue over the time of computing is to be 1. `work` is
that of observe/autoscaling.yml: the rows that come are to be three fifths of what the replicas
can do in full batches, the most that came within 15 minutes four fifths, and what waits longer
than the goal allows is to be gone in 15 s.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fleet import Model, Replica
from benchmarks.instruments import print_machine_facts, print_table
from benchmarks.queues import Nobody
from reference_server.autoscaling import Goal, Peak, replicas_wanted
from reference_server.core.request import InferRequest

_MS = 1_000_000
_S = 1_000_000_000

SCRAPE_S = 5
RATE_S = 30
#: The defaults of a HorizontalPodAutoscaler.
DECIDE_S = 15
TOLERANCE = 0.1
CALM_S = 300
#: The least that stays.
LEAST = 2
#: By then each rule has seen a burst.
KNOWN_S = 600
#: How long a load stays, of which the first table tells.
STEADY_S = 60


class Reading(NamedTuple):
    """What the metrics of all replicas together tell; times in seconds."""

    answered: int = 0
    queued_s: float = 0.0
    computed_s: float = 0.0
    pending: int = 0


class Situation(NamedTuple):
    """What a rule decides by: two readings, and the replicas that were read."""

    before: Reading
    now: Reading
    before_s: float
    now_s: float
    replicas: int


#: How many times as many replicas are wanted.
Rule = Callable[[Situation], float]


def ratio(goal: Goal) -> Rule:
    """Time in the queue over time of computing, which is to be 1."""

    def decide(seen: Situation) -> float:
        computed = seen.now.computed_s - seen.before.computed_s
        return (seen.now.queued_s - seen.before.queued_s) / computed if computed else 0.0

    return decide


def work(goal: Goal) -> Rule:
    """Rows that come, came at most, or wait beyond what the goal allows, over what can be done."""
    peak = Peak()

    def decide(seen: Situation) -> float:
        before, now, replicas = seen.before, seen.now, seen.replicas
        came = now.answered - before.answered + now.pending - before.pending
        come_per_s = came / (seen.now_s - seen.before_s)
        most = peak.seen(seen.now_s, come_per_s)
        return replicas_wanted(come_per_s, most, now.pending, replicas, goal) / replicas

    return decide


#: The rules, each made anew for a fleet: it may remember what it has seen.
RULES: Mapping[str, Callable[[Goal], Rule]] = {"ratio": ratio, "work": work}


class Autoscaler:
    """A HorizontalPodAutoscaler with its defaults: at most twice as many or 4 more in 15 s, and
    fewer only when that has been enough for 5 minutes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._wanted: deque[tuple[float, int]] = deque()

    def decide(self, at_s: float, replicas: int, factor: float) -> int:
        """How many there are to be."""
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
    """What happened in one second: requests that came, missed the goal, and replicas at its end."""

    came: int = 0
    answered: int = 0
    missed: int = 0
    replicas: int = 0


@dataclass
class Outcome:
    """The seconds, what was paid for (starting and ending replicas among it), the last reading."""

    seconds: list[Second] = field(default_factory=list)
    replica_s: float = 0.0
    last: Reading = field(default_factory=Reading)

    def missed(self, since_s: int = 0) -> float:
        """The share of the requests answered since then that took longer than the goal."""
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
    """Let a fleet serve what comes, second by second, and the rule say how large it is."""
    serving = [Replica(model) for _ in range(replicas)]
    starting: deque[float] = deque()  # when each serves
    ending: list[Replica] = []
    events: list[tuple[int, int, Replica]] = []
    numbers = itertools.count()
    autoscaler, outcome, second = Autoscaler(most), Outcome(), Second()
    answered, queued_ns, computed_ns = 0, 0, 0
    goal_ns = goal.latency_s * _S
    readings: deque[tuple[int, Reading]] = deque([(0, Reading())])

    def look_until(end_ns: float) -> None:
        nonlocal answered, queued_ns, computed_ns
        while events and events[0][0] <= end_ns:
            now_ns, _, replica = heapq.heappop(events)
            batch, again_ns = replica.look(now_ns)
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
        second = Second(came=len(coming))
        outcome.seconds.append(second)
        for now_ns in coming:
            look_until(now_ns)
            replica = min(serving, key=_least)
            again_ns = replica.come(InferRequest("m", {}, Nobody(), queued_ns=now_ns), now_ns)
            if again_ns is not None:
                heapq.heappush(events, (again_ns, next(numbers), replica))
        ended_s = at_s + 1
        look_until(ended_s * _S)
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


_least = attrgetter("in_flight")


def day(per_minute: int, seconds: int) -> Iterator[float]:
    """Requests a second over a day that is as short: little at night, the most in the afternoon."""
    for at in range(seconds):
        hour = 24 * at / seconds
        high = math.exp(-(((hour - 15) / 4) ** 2)) + 0.6 * math.exp(-(((hour - 10) / 2.5) ** 2))
        yield per_minute / 60 * (0.1 + 0.9 * high / 1.13)


def bursts(per_minute: int, seconds: int) -> Iterator[float]:
    """Two fifths of the most, and all of it for two minutes of ten."""
    for at in range(seconds):
        yield per_minute / 60 * (1.0 if 180 <= at % 600 < 300 else 0.4)


TRACES: Mapping[str, Callable[[int, int], Iterator[float]]] = {"day": day, "bursts": bursts}


def arrivals(rates: Iterator[float], seed: int) -> Iterator[Sequence[int]]:
    """When requests come that know nothing of each other, in ns, a list for each second."""
    random = np.random.default_rng(seed)
    for second, rate in enumerate(rates):
        times = np.sort(random.random(random.poisson(rate)))
        yield ((second + times) * _S).astype(np.int64).tolist()


def main() -> None:
    """Simulate both rules on both traces, print a line for each, and draw them."""
    options = parse_arguments()
    print_machine_facts()
    model = Model(round(options.base_ms * _MS), round(options.row_ms * _MS), options.largest, 0)
    full_batch_s = (model.base_ns + model.largest * model.row_ns) / _S
    goal = Goal(model.most_per_second, full_batch_s, options.goal_ms / 1000)
    print(
        f"up to {options.per_minute:,} requests a minute, each to be answered within "
        f"{options.goal_ms:g} ms; a replica can execute {goal.rows_per_s * 60:,.0f} a minute"
    )
    print_table(("load", "ratio", "work", "late"), steady(model, goal))
    print()
    pairs = list(itertools.product(TRACES, RULES))
    with ProcessPoolExecutor(len(pairs)) as pool:
        runs = {pair: pool.submit(run, *pair, model, goal, options) for pair in pairs}
        outcomes = {pair: future.result() for pair, future in runs.items()}
    rows = []
    for (trace, name), outcome in outcomes.items():
        came = sum(second.came for second in outcome.seconds)
        hours = outcome.replica_s / 3600
        used = came / goal.rows_per_s / outcome.replica_s
        late = (f"{outcome.missed(since_s):.2%}" for since_s in (0, KNOWN_S))
        rows.append([trace, name, f"{came:,}", *late, f"{hours:.2f}", f"{used:.0%}"])
    headings = ("late", f"after {KNOWN_S // 60} min", "replica-hours", "used")
    print_table(("trace", "rule", "requests", *headings), rows)
    if options.plot:
        draw(outcomes, goal, options.plot)


def steady(model: Model, goal: Goal) -> list[list[str]]:
    """What both rules say of two replicas under loads that stay, by the share of full batches."""
    rows = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        coming = arrivals(itertools.repeat(share * LEAST * goal.rows_per_s, STEADY_S), seed=1)
        outcome = simulate(model, work(goal), coming, goal, replicas=LEAST, most=LEAST, start_s=0)
        seen = Situation(Reading(), outcome.last, 0, STEADY_S, LEAST)
        rows.append([f"{share:.0%}", *(f"{rule(goal)(seen):.2f}" for rule in RULES.values()),
                     f"{outcome.missed():.2%}"])  # fmt: skip
    return rows


def run(trace: str, rule: str, model: Model, goal: Goal, options: argparse.Namespace) -> Outcome:
    """One rule on one trace."""
    rates = TRACES[trace](options.per_minute, round(options.minutes * 60))
    return simulate(
        *(model, RULES[rule](goal), arrivals(rates, options.seed), goal),
        replicas=options.replicas,
        most=options.most,
        start_s=options.start_s,
    )


def draw(outcomes: Mapping[tuple[str, str], Outcome], goal: Goal, file: Path) -> None:
    """What came, how many replicas there were, and what missed the goal. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(3, len(TRACES), figsize=(11, 7.5), sharex="col", squeeze=False)
    step = 15
    for column, trace in enumerate(TRACES):
        top, middle, bottom = (axes[row][column] for row in range(3))
        for name, colour in zip(RULES, ("#c77700", "#2e8b57"), strict=True):
            outcome = outcomes[trace, name]
            seconds = outcome.seconds
            minutes = [at / 60 for at in range(0, len(seconds), step)]
            parts = [seconds[at : at + step] for at in range(0, len(seconds), step)]
            share = [
                100 * sum(each.missed for each in part) / max(1, sum(e.answered for e in part))
                for part in parts
            ]
            told = (
                f"{name}: {outcome.missed():.1%} late, {outcome.replica_s / 3600:.1f} replica-hours"
            )
            middle.step(minutes, [part[-1].replicas for part in parts], color=colour, label=told)
            bottom.fill_between(minutes, share, step="post", alpha=0.5, color=colour, label=name)
        came = [sum(each.came for each in part) / len(part) * 60 / 1000 for part in parts]
        top.plot(minutes, came, color="#4a7fb5")
        top.set_title(trace)
        needed = [thousands * 1000 / 60 / goal.rows_per_s for thousands in came]
        middle.plot(
            minutes, needed, color="#888", linestyle=":", label="in full batches, no reserve"
        )
        middle.set_ylim(0, 1.5 * middle.get_ylim()[1])
        middle.legend(loc="upper left", fontsize=8)
        bottom.set_ylim(0, 100)
        bottom.set_xlabel("minutes")
        bottom.legend(loc="upper left", fontsize=8)
    for row, label in enumerate(
        ("thousand requests a minute", "replicas", f"% later than {goal.latency_s * 1000:g} ms")
    ):
        axes[row][0].set_ylabel(label)
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--per-minute", type=int, default=1_000_000, metavar="REQUESTS")
    parser.add_argument("--minutes", type=float, default=120.0, help="that are simulated (120)")
    parser.add_argument("--base-ms", type=float, default=8.0, help="of an execution (8)")
    parser.add_argument("--row-ms", type=float, default=1.0, help="of each request in it (1)")
    parser.add_argument("--largest", type=int, default=16, help="max_batch_size (16)")
    parser.add_argument("--goal-ms", type=float, default=100.0, help="of a request (100)")
    parser.add_argument("--replicas", type=int, default=6, help="at the beginning (6)")
    parser.add_argument("--most", type=int, default=64, help="replicas (64)")
    parser.add_argument("--start-s", type=float, default=20.0, help="until one serves (20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
