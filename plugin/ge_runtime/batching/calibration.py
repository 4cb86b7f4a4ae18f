"""Calibration: fits the cost model to executions measured at load.

The caller executes and reads the clocks. This module decides which sizes to measure and when enough
time was spent, derives the model, and decides whether it is reliable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from ge_runtime.batching.cost import LAUNCH_FLOOR_S, CostEvidence, CostModel
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.errors import EngineFault

ROUNDS: Final = 6
"""Largest number of executions of one size."""

RELIABLE_SCATTER: Final = 0.5
"""Largest scatter of a reliable calibration: the root of the mean squared logarithm of measured /
predicted. It is 0.05 to 0.2 on an idle machine, up to 0.35 if eight other processes use it."""

RELIABLE_WEIGHT: Final = 128.0
"""Weight of a reliable calibration, in executions of requests: see LiveCost."""

UNRELIABLE_WEIGHT: Final = 1.0
"""Weight of an unreliable calibration."""

_MOST_SIZES: Final = 48
_LEAST_SIZES: Final = 4
_LARGEST_SHARE: Final = 1 / 8
"""Share of the budget that one execution may take after _LEAST_SIZES sizes were measured: several
executions of each size are worth more than one execution that takes all the time."""

_WALL_PREFERENCE: Final = 1.2
"""The wall clock is used if it scatters at most this many times as much as CPU time, which does not
show how well threads share the work."""

_COMPUTES: Final = 4.0
"""Wall-clock time per CPU time up to which a disturbed process counts as computing."""

_LOWER_QUARTILE: Final = 25
_TICK_S: Final = 1e-9  # for clocks too coarse to see an execution


class Sample(NamedTuple):
    """The time of one execution."""

    wall_s: float
    cpu_s: float | None = None
    """CPU time of all threads of this process; None if a device or another process computes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The measured time of one size."""

    gear: Gear
    seconds: float
    samples: int = 1
    """Number of executions; `seconds` is the lower quartile of their times."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A cost model and the measurements it was fitted to."""

    cost: CostModel
    evidence: CostEvidence
    timings: tuple[Timing, ...]
    """In order of growing work."""
    failures: tuple[tuple[Gear, EngineFault], ...]
    """Sizes that the engine could not execute; the model does not use them."""
    doubt: str = ""
    """The reason why the samples are unreliable, or ""; `cost` is then a cautious model."""

    def __str__(self) -> str:
        failed = "".join(f"; {gear} left out: {fault}" for gear, fault in self.failures)
        doubt = (
            f"; unreliable, because {self.doubt}: requests are executed alone until executions of "
            "requests show what sharing gains"
        )
        text = f"{self.cost}, from executions of {len(self.timings)} size(s)"
        return f"{text}{doubt if self.doubt else ''}{failed}"


@dataclass(slots=True)
class _Size:
    """The samples of one size."""

    gear: Gear
    samples: list[Sample] = field(default_factory=list)

    @property
    def counted(self) -> list[Sample]:
        """The samples without the first, in which engines allocate, unless it is the only one."""
        return self.samples[1:] or self.samples

    @property
    def expected_s(self) -> float:
        return min(sample.wall_s for sample in self.samples)


def calibrate(
    execute: Callable[[Gear], Sample],
    gears: Gears,
    terms: tuple[tuple[str, ...], ...],
    *,
    budget_s: float,
) -> Calibration:
    """Measure executions now, and fit the cost model with the least squared relative error.

    The sizes are executed in turn, so that a disturbance of the machine affects all sizes alike.
    The lower quartile of each size counts. After the first execution, an execution that could
    exceed the remaining budget does not start.

    Other processes on the same cores make the wall-clock time several times as long, and hardly
    change the CPU time. So known CPU times are used if the wall clock scatters more.

    Samples are unreliable if no cost model explains them, or if only one of several was timed.
    By the returned cost, sharing then gains nothing. Deterministic for given samples.

    Args:
        execute: Runs one execution of a size and returns its time; it may raise EngineFault.
        gears: The sizes of the model.
        terms: See CostModel.
        budget_s: Wall-clock seconds for all executions together, without the very first, which
            warms up the engine and does not count.

    Returns:
        The model, with the measurements.

    Raises:
        EngineFault: No size could be executed.
    """
    yardstick = CostModel(0.0, 0.0, 0.0, terms)
    sizes = [_Size(gear) for gear in _sizes(gears, yardstick)]
    failures = _execute_in_turns(execute, sizes, yardstick, budget_s)
    timed = [size for size in sizes if size.samples]
    if not timed:
        raise failures[-1][1]
    fit = _Fit.of([_timing(size, lambda each: each.wall_s) for size in timed], terms)
    if unit := _wall_per_cpu(timed):
        by_cpu = _Fit.of([_timing(size, lambda each: _cpu_s(each) * unit) for size in timed], terms)
        if fit.scatter > by_cpu.scatter * _WALL_PREFERENCE:
            fit = by_cpu
    cost, evidence, doubt = fit.cost, fit.evidence, ""
    if len(timed) == 1 and len(sizes) > 1:
        doubt = "only one size could be timed"
    elif fit.scatter > RELIABLE_SCATTER:
        doubt = f"samples scatter by {math.expm1(fit.scatter):.0%} around any model"
    weight = UNRELIABLE_WEIGHT if doubt else RELIABLE_WEIGHT
    evidence = evidence.scaled(weight / evidence.weight)
    if doubt:
        cost = _cautious(fit.timings, yardstick)
    return Calibration(cost, evidence, tuple(fit.timings), tuple(failures), doubt)


def _execute_in_turns(
    execute: Callable[[Gear], Sample], sizes: list[_Size], yardstick: CostModel, budget_s: float
) -> list[tuple[Gear, EngineFault]]:
    """Measure the sizes in order of growing work; return the failures."""
    failures: list[tuple[Gear, EngineFault]] = []
    failed: set[int] = set()
    left_s, warm = budget_s, False
    for _ in range(ROUNDS):
        for place, size in enumerate(sizes):
            if place in failed:
                continue
            timed = [other for other in sizes if other.samples]
            if len(timed) >= _LEAST_SIZES:
                most_s = min(left_s, budget_s * _LARGEST_SHARE)
            else:
                most_s = left_s
            if timed and _upper_bound_s(size, timed, yardstick) > most_s:
                continue
            try:
                if not warm:
                    execute(size.gear)  # engines select kernels in their very first execution
                    warm = True
                size.samples.append(execute(size.gear))
            except EngineFault as fault:
                failures.append((size.gear, fault))
                failed.add(place)
                size.samples.clear()
                continue
            left_s -= size.samples[-1].wall_s
    return failures


def _upper_bound_s(size: _Size, timed: Sequence[_Size], yardstick: CostModel) -> float:
    """Return an upper bound on the time of this size, for every cost model that fits `timed`.

    Time grows at most as rows^1.5 and, at equal rows, as the square of a row's elements.
    """
    if size.samples:
        return size.expected_s
    elements = yardstick.elements(size.gear.extents)
    return min(
        other.expected_s
        * math.pow(max(1.0, size.gear.rows / other.gear.rows), 1.5)
        * max(1.0, elements / yardstick.elements(other.gear.extents)) ** 2
        for other in timed
    )


def _cpu_s(sample: Sample) -> float:
    return sample.cpu_s or 0.0


def _timing(size: _Size, seconds_of: Callable[[Sample], float]) -> Timing:
    taken = [seconds_of(sample) for sample in size.counted]
    seconds = float(np.percentile(taken, _LOWER_QUARTILE))
    return Timing(size.gear, max(seconds, _TICK_S), len(taken))


def _wall_per_cpu(timed: Sequence[_Size]) -> float | None:
    """Return wall-clock seconds per CPU second; None if CPU time is not meaningful.

    It is not meaningful if another process computes, or if executions mostly wait.
    """
    samples = [sample for size in timed for sample in size.counted]
    shares = [each.wall_s / _cpu_s(each) for each in samples if _cpu_s(each) >= _TICK_S]
    if len(shares) < len(samples):
        return None
    least = float(np.percentile(shares, _LOWER_QUARTILE))
    # At most 1, the ratio of a single thread that is not disturbed.
    return None if least > _COMPUTES else min(least, 1.0)


@dataclass(frozen=True, slots=True)
class _Fit:
    """The cost model fitted to timings."""

    timings: list[Timing]
    cost: CostModel
    evidence: CostEvidence
    scatter: float
    """See RELIABLE_SCATTER."""

    @classmethod
    def of(cls, timings: list[Timing], terms: tuple[tuple[str, ...], ...]) -> _Fit:
        yardstick = CostModel(0.0, 0.0, 0.0, terms)
        rows = [timing.gear.rows for timing in timings]
        elements = [yardstick.elements(timing.gear.extents) for timing in timings]
        seconds = [timing.seconds for timing in timings]
        evidence = CostEvidence()
        evidence.add(rows, elements, seconds)
        works = {n * count for n, count in zip(rows, elements, strict=True)}
        if len(works) > 1:
            cost = evidence.model(terms)
        else:
            # Launch and elements cannot be distinguished: each gets half of the time.
            half = sum(seconds) / len(seconds) / 2
            cost = CostModel(max(half, LAUNCH_FLOOR_S), half / works.pop(), 0.0, terms)
        errors = [
            math.log(timing.seconds / cost.seconds(timing.gear.rows, timing.gear.extents))
            for timing in timings
            if timing.seconds > LAUNCH_FLOOR_S  # the minimum of every model
        ]
        squares = sum(error * error for error in errors)
        return cls(timings, cost, evidence, math.sqrt(squares / max(1, len(errors))))


def _cautious(timings: Sequence[Timing], yardstick: CostModel) -> CostModel:
    """Return a cost by which an execution of several rows saves only the smallest launch time."""
    fewest = min(timing.gear.rows for timing in timings)
    growths = [
        timing.seconds / (fewest**1.5 * yardstick.elements(timing.gear.extents))
        for timing in timings
        if timing.gear.rows == fewest
    ]
    return CostModel(LAUNCH_FLOOR_S, 0.0, 0.0, yardstick.terms, float(np.median(growths)))


def _sizes(gears: Gears, yardstick: CostModel) -> list[Gear]:
    """Return the sizes to measure, by growing work: few and many rows, small and large extents."""

    def work(gear: Gear) -> tuple[int, int]:
        elements = yardstick.elements(gear.extents)
        return gear.rows * elements, elements

    if gears.fixed:
        sizes = list(gears.every())
    else:
        sizes = []
        for rows, share in product(_row_counts(gears.rows), (32, 16, 8, 4, 2, 1)):
            extents = {axis: -(-limit // share) for axis, limit in gears.limits.items()}
            gear = gears.at_least(rows, extents)
            if gear is not None and gear not in sizes:
                sizes.append(gear)
    sizes.sort(key=work)
    if len(sizes) > _MOST_SIZES:
        spread = np.linspace(0, len(sizes) - 1, _MOST_SIZES).round().astype(int)
        sizes = [sizes[index] for index in spread]
    return sizes


def _row_counts(most: int) -> Iterator[int]:
    rows = 1
    while rows < most:
        yield rows
        rows *= 2
    yield most
