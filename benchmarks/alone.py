"""Whether batches are never slower than the same requests one by one, on models of unlike costs.

One by one is what Triton does with requests of unequal shapes. Both ways use one runtime and take
turns with each batch, so that whatever else the machine does disturbs both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.instruments import open_runtime, print_table
from benchmarks.workloads import Workload
from ge_runtime.runtime import Runtime

Infer = Callable[[list], list]


class Pair(NamedTuple):
    """One turn: the batches together, and their requests one by one."""

    useful_per_second: float
    cpu_us_per_useful: float
    throughput: float
    """Of one by one."""
    cpu: float
    """The same of CPU time per useful item."""


def compare(
    workloads: Sequence[Workload], *, turns: int, batches: int, requests: int, seed: int
) -> list[dict]:
    """Each workload in so many turns of so many batches; the rows of the table."""
    results = []
    for workload in workloads:
        print(f"\n=== alone: {workload.name}; {turns} turns of {batches} batches of {requests}")
        parameters = {**workload.parameters, "cost_cache": "off"}
        runtime = open_runtime(workload.version, workload.config, parameters)
        print(runtime.report[-1].partition(": ")[2])
        pairs = []
        for turn in range(turns):
            sizes = workload.sizes(batches * requests, seed + turn)
            cut = [sizes[at : at + requests] for at in range(0, len(sizes), requests)]
            pairs.append(_pair(runtime, [workload.requests(own, seed) for own in cut], sum(sizes)))
        counts = runtime.counts()
        runtime.close()
        predicted = counts.predicted_seconds / counts.measured_seconds
        print_pairs(workload, pairs)
        print(f"predicted by the cost model: {predicted:.2f} of the time of executions")
        own = [pair._asdict() for pair in pairs]
        results.append({"workload": workload.name, "pairs": own, "predicted": predicted})
    return results


def _pair(runtime: Runtime, batches: Sequence[list], useful: int) -> Pair:
    def one_by_one(batch: list) -> list:
        return [answer for request in batch for answer in runtime.infer([request])]

    ways: list[Infer] = [runtime.infer, one_by_one]
    walls, cpus = [0.0, 0.0], [0.0, 0.0]
    for number, batch in enumerate(batches):
        # Either goes first, by turns: the second finds the caches warmer.
        for way in (number % 2, 1 - number % 2):
            wall, cpu = _timed(ways[way], batch)
            walls[way] += wall
            cpus[way] += cpu
    return Pair(useful / walls[0], cpus[0] / useful * 1e6, walls[1] / walls[0], cpus[0] / cpus[1])


def _timed(way: Infer, batch: list) -> tuple[float, float]:
    """Seconds of the wall clock and of CPU time, of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    answers = way(batch)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return wall, cpu


def print_pairs(workload: Workload, pairs: Sequence[Pair]) -> None:
    names = [f"useful {workload.unit}s/s", f"CPU us of a {workload.unit}"]
    names += ["throughput, of one by one", "CPU time, of one by one"]
    lines = []
    for name, column in zip(names, zip(*pairs, strict=True), strict=True):
        own = (statistics.median(column), min(column), max(column))
        lines.append([name, *(f"{value:,.2f}" for value in own)])
    print_table([f"{len(pairs)} turns", "median", "least", "most"], lines)
