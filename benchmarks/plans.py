"""Whether request batches are cut into the best executions, whatever a load's calibration saw.

Every execution that a plan may have is timed several times, in turns: the grid. The optimum is the
plan of least time by the grid, and by the grid other plans are judged, too. So what else the
machine did while a plan ran is left out; what is seen is the form of the cost model, how little
a calibration has time for, and its noise.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from benchmarks.instruments import as_mapping, print_table
from benchmarks.workloads import Workload
from ge_runtime.assembly import Assembly, assemble
from ge_runtime.batching.cost import LiveCost
from ge_runtime.batching.gears import Gear
from ge_runtime.batching.partition import RequestSizes

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SERVED = 128
"""Batches that correct a calibration before its plans are judged again."""
_LONGEST_S = 0.5
"""Executions that take longer are not timed, and cost twice as much by row: no plan has them."""


def compare(
    workloads: Sequence[Workload],
    *,
    loads: int,
    others: int,
    rounds: int,
    batches: int,
    requests: int,
    seed: int,
) -> list[dict]:
    """Plans of each workload by the calibrations of loads, against the optimum.

    loads: so many alone on the machine, and so many beside `others`, processes that never rest.
    rounds: how often each execution of the grid is timed.
    """
    results = []
    for workload in workloads:
        print(f"\n=== plans: {workload.name}; {loads} loads, {batches} batches of {requests}")
        sizes = workload.sizes(batches * requests, seed)
        cut = _batches(sizes, requests)
        costs: dict[str, list[LiveCost]] = {"alone": [], f"beside {others}": []}
        for _ in range(loads):
            for (beside, own), busy in zip(costs.items(), (0, others), strict=True):
                with restless(busy), loaded(workload) as model:
                    own.append(model.costs)
                    print(f"{beside}: {model.report[-1].partition(': ')[2]}", flush=True)
        with loaded(workload) as model:
            grid = Grid.measured(model, workload, rounds, requests)
            print(grid)
            optimum = _seconds(model, grid, None, cut)
            ratios: dict[str, list[float]] = {}
            served = _batches(workload.sizes(SERVED * requests, seed + 1), requests)
            for beside, own in costs.items():
                ratios[beside] = [_seconds(model, grid, live, cut) / optimum for live in own]
                for live in own:
                    _serve(model, grid, live, served)
                learned = [_seconds(model, grid, live, cut) / optimum for live in own]
                ratios[f"{beside}, then served"] = learned
        one_by_one = sum(grid.seconds(1, {workload.axis: size}) for size in sizes) / optimum
        lines = [
            [f"calibrated {beside}", *(f"{of(own):.3f}x" for of in (statistics.median, max))]
            for beside, own in ratios.items()
        ]
        print_table(
            ["time of plans, of the optimum's", "median", "worst"],
            [*lines, ["one by one", f"{one_by_one:.3f}x", ""]],
        )
        results.append({"workload": workload.name, "plans": ratios, "one_by_one": one_by_one})
    return results


@contextmanager
def restless(count: int) -> Iterator[None]:
    """So many processes that compute, and use the caches."""
    program = "import numpy as np; a = np.ones((1500, 1500))\nwhile True: a = np.sin(a)"
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    if processes:
        time.sleep(1.0)  # until they compute
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def loaded(workload: Workload) -> Iterator[Assembly]:
    """The model, opened and calibrated anew."""
    mapping = as_mapping(workload.config, {**workload.parameters, "cost_cache": "off"})
    model = assemble(workload.version, mapping, instance_name="benchmark", derived=())
    try:
        yield model
    finally:
        for closed in (*model.executors, *model.backends):
            closed.close()


def _seconds(
    model: Assembly, grid: Grid, live: LiveCost | None, batches: Sequence[Sequence[int]]
) -> float:
    """The time by the grid of these batches if they are planned by this cost; None: by the grid."""
    model.partitioner.use(live.cost if live else grid)
    return sum(
        grid.seconds(gear.rows, gear.extents)
        for sizes in batches
        for gear in _plan(model, grid, sizes)
    )


def _serve(model: Assembly, grid: Grid, live: LiveCost, batches: Sequence[Sequence[int]]) -> None:
    """Let the cost learn from executions that take what the grid says."""
    for sizes in batches:
        model.partitioner.use(live.cost)
        for gear in _plan(model, grid, sizes):
            seconds = grid.seconds(gear.rows, gear.extents)
            live.observe(gear.rows, gear.extents, seconds, shared=gear.rows > 1)


def _plan(model: Assembly, grid: Grid, sizes: Sequence[int]) -> list[Gear]:
    requests = RequestSizes([1] * len(sizes), {grid.axis: list(sizes)})
    return [execution.gear for execution in model.partitioner.plan(requests)]


def _batches(sizes: Sequence[int], requests: int) -> list[Sequence[int]]:
    return [sizes[at : at + requests] for at in range(0, len(sizes), requests)]


class Grid:
    """What executions took, and in between: a cost for partitioners, in place of a cost model."""

    def __init__(
        self, axis: str, rows: Sequence[int], sizes: Sequence[int], seconds: NDArray[np.float64]
    ) -> None:
        """seconds: [rows, sizes]."""
        self.axis, self._rows, self._sizes, self._seconds = axis, rows, sizes, seconds

    @classmethod
    def measured(cls, model: Assembly, workload: Workload, rounds: int, most_rows: int) -> Grid:
        """The lower quartile of each execution's times."""
        counts = [rows for rows in _ROWS if rows <= most_rows]
        axis, executor = workload.axis, model.executors[0]
        spread = np.geomspace(workload.step, model.config.limits[axis], 14).astype(int).tolist()
        sizes = sorted({-(-size // workload.step) * workload.step for size in spread})
        samples: dict[tuple[int, int], list[float]] = {}
        for _ in range(1 + rounds):
            for size in sizes:
                (request,) = workload.requests([size], seed=1)
                block = model.admission.admit(request, "")
                before = [0.0]  # of the row count before this one
                for rows in counts:
                    taken = samples.setdefault((rows, size), [])
                    if before and min(before) < _LONGEST_S / 2:
                        _, _, sample = executor.measure([block] * rows, Gear(rows, {axis: size}))
                        executor.end_batch()
                        taken.append(sample.wall_s)
                    before = taken
        seconds = np.full((len(counts), len(sizes)), np.nan)
        for place, size in enumerate(sizes):
            for at, rows in enumerate(counts):
                # Engines allocate in their first execution of a size.
                if counted := samples[rows, size][1:]:
                    seconds[at, place] = np.percentile(counted, 25)
                else:
                    seconds[at, place] = 2 * seconds[at - 1, place] * rows / counts[at - 1]
        # An execution takes no longer than one of more rows or longer ones: what says otherwise was
        # disturbed, and the optimum would choose whatever was not.
        for dim in (0, 1):
            seconds = np.flip(np.minimum.accumulate(np.flip(seconds, dim), dim), dim)
        return cls(axis, counts, sizes, seconds)

    def __str__(self) -> str:
        lines = [f"ms a row, by rows and {self.axis}"]
        lines.append("".join(f"{size:>8}" for size in ("", *self._sizes)))
        for rows, own in zip(self._rows, self._seconds, strict=True):
            lines.append(f"{rows:>8}" + "".join(f"{value / rows * 1e3:>8.1f}" for value in own))
        return "\n".join(lines)

    def elements_many(self, extents: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        return extents[self.axis]

    def seconds(self, rows: int, extents: Mapping[str, int]) -> float:
        return float(self.seconds_many(np.array(rows), {self.axis: np.array(extents[self.axis])}))

    def seconds_many(
        self, rows: NDArray[np.int64], extents: Mapping[str, NDArray[np.int64]]
    ) -> NDArray[np.float64]:
        """Linear in between, in rows and in sizes."""
        top, down = _between(self._rows, rows)
        left, right = _between(self._sizes, extents[self.axis])
        seconds = self._seconds
        above = seconds[top, left] * (1 - right) + seconds[top, left + 1] * right
        below = seconds[top + 1, left] * (1 - right) + seconds[top + 1, left + 1] * right
        return above * (1 - down) + below * down


def _between(
    points: Sequence[int], values: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The place of the point before each value, and the share of the way from it to the next."""
    at = np.array(points)
    place = np.clip(np.searchsorted(at, values, "right") - 1, 0, len(at) - 2)
    return place, (values - at[place]) / (at[place + 1] - at[place])
