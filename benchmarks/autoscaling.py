"""Two autoscaling rules on the same traffic, simulated with the server's own batcher.

    python -m benchmarks.autoscaling --plot docs/images/autoscaling.png     half an hour
    python -m benchmarks.autoscaling --per-minute 20000 --minutes 30

Each request goes to the replica with the fewest requests. Prometheus reads the metrics every 5 s,
a HorizontalPodAutoscaler with its defaults decides every 15 s, and a new replica serves after
`--start-s`. A removed replica completes its requests. See `benchmarks.fleet`.

`ratio` is the usual rule: queue time over compute time should be 1. `work` is the rule of
observe/autoscaling.yml: arriving rows should be three fifths of the replicas' capacity with full
batches, the largest arrival rate of the last 15 minutes four fifths, and rows that wait longer
than the goal allows should be executed within 15 s.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.fleet import LEAST, RULES, Model, Outcome, Reading, Situation, simulate, work
from benchmarks.instruments import print_machine_facts, print_table
from reference_server.autoscaling import Goal

_MS = 1_000_000
_S = 1_000_000_000

KNOWN_S = 600
"""Both rules have seen a burst by then."""
STEADY_S = 60
"""Duration of each constant load of the first table."""


def day(per_minute: int, seconds: int) -> Iterator[float]:
    """Yield requests per second over a shortened day, with the peak in the afternoon."""
    for at in range(seconds):
        hour = 24 * at / seconds
        high = math.exp(-(((hour - 15) / 4) ** 2)) + 0.6 * math.exp(-(((hour - 10) / 2.5) ** 2))
        yield per_minute / 60 * (0.1 + 0.9 * high / 1.13)


def bursts(per_minute: int, seconds: int) -> Iterator[float]:
    """Yield two fifths of the peak rate, and the peak rate for two minutes of every ten."""
    for at in range(seconds):
        yield per_minute / 60 * (1.0 if 180 <= at % 600 < 300 else 0.4)


TRACES: Mapping[str, Callable[[int, int], Iterator[float]]] = {"day": day, "bursts": bursts}


def arrivals(rates: Iterator[float], seed: int) -> Iterator[Sequence[int]]:
    """Yield for each second the arrival times of a Poisson process, in nanoseconds."""
    random = np.random.default_rng(seed)
    for second, rate in enumerate(rates):
        times = np.sort(random.random(random.poisson(rate)))
        yield ((second + times) * _S).astype(np.int64).tolist()


def main() -> None:
    """Run the command: simulate both rules on both traces, print and draw the results."""
    options = parse_arguments()
    print_machine_facts()
    model = Model(round(options.base_ms * _MS), round(options.row_ms * _MS), options.largest, 0)
    full_batch_s = (model.base_ns + model.largest * model.row_ns) / _S
    goal = Goal(model.most_per_second, full_batch_s, options.goal_ms / 1000)
    print(
        f"up to {options.per_minute:,} requests per minute, latency goal {options.goal_ms:g} ms; "
        f"capacity of a replica: {goal.rows_per_s * 60:,.0f} per minute"
    )
    print_table(("load", "ratio", "work", "late"), steady(model, goal))
    print()
    pairs = list(itertools.product(TRACES, RULES))
    with ProcessPoolExecutor(len(pairs)) as pool:
        runs = {pair: pool.submit(run, *pair, model, goal, options) for pair in pairs}
        outcomes = {pair: future.result() for pair, future in runs.items()}
    rows = []
    for (trace, name), outcome in outcomes.items():
        arrived = sum(second.arrived for second in outcome.seconds)
        hours = outcome.replica_s / 3600
        used = arrived / goal.rows_per_s / outcome.replica_s
        late = (f"{outcome.missed(since_s):.2%}" for since_s in (0, KNOWN_S))
        rows.append([trace, name, f"{arrived:,}", *late, f"{hours:.2f}", f"{used:.0%}"])
    headings = ("late", f"after {KNOWN_S // 60} min", "replica-hours", "used")
    print_table(("trace", "rule", "requests", *headings), rows)
    if options.plot:
        draw(outcomes, goal, options.plot)


def steady(model: Model, goal: Goal) -> list[list[str]]:
    """Return both rules' results for two replicas under constant loads."""
    rows = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        coming = arrivals(itertools.repeat(share * LEAST * goal.rows_per_s, STEADY_S), seed=1)
        outcome = simulate(model, work(goal), coming, goal, replicas=LEAST, most=LEAST, start_s=0)
        seen = Situation(Reading(), outcome.last, 0, STEADY_S, LEAST)
        rows.append([f"{share:.0%}", *(f"{rule(goal)(seen):.2f}" for rule in RULES.values()),
                     f"{outcome.missed():.2%}"])  # fmt: skip
    return rows


def run(trace: str, rule: str, model: Model, goal: Goal, options: argparse.Namespace) -> Outcome:
    """Simulate one rule on one trace."""
    rates = TRACES[trace](options.per_minute, round(options.minutes * 60))
    return simulate(
        model,
        RULES[rule](goal),
        arrivals(rates, options.seed),
        goal,
        replicas=options.replicas,
        most=options.most,
        start_s=options.start_s,
    )


def draw(outcomes: Mapping[tuple[str, str], Outcome], goal: Goal, file: Path) -> None:
    """Draw requests, replicas and late requests over time. Needs matplotlib."""
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
            label = (
                f"{name}: {outcome.missed():.1%} late, {outcome.replica_s / 3600:.1f} replica-hours"
            )
            middle.step(minutes, [part[-1].replicas for part in parts], color=colour, label=label)
            bottom.fill_between(minutes, share, step="post", alpha=0.5, color=colour, label=name)
        arrived = [sum(each.arrived for each in part) / len(part) * 60 / 1000 for part in parts]
        top.plot(minutes, arrived, color="#4a7fb5")
        top.set_title(trace)
        needed = [thousands * 1000 / 60 / goal.rows_per_s for thousands in arrived]
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
    add = parser.add_argument
    add("--per-minute", type=int, default=1_000_000, help="peak requests per minute (1,000,000)")
    add("--minutes", type=float, default=120.0, help="simulated minutes (120)")
    add("--base-ms", type=float, default=8.0, help="fixed time of an execution (8)")
    add("--row-ms", type=float, default=1.0, help="time per request in an execution (1)")
    add("--largest", type=int, default=16, help="max_batch_size (16)")
    add("--goal-ms", type=float, default=100.0, help="latency goal of a request (100)")
    add("--replicas", type=int, default=6, help="initial replicas (6)")
    add("--most", type=int, default=64, help="largest number of replicas (64)")
    add("--start-s", type=float, default=20.0, help="seconds until a new replica serves (20)")
    add("--seed", type=int, default=1, help="seed of the arrival times (1)")
    add("--plot", type=Path, metavar="FILE", help="draw the results (needs matplotlib)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
