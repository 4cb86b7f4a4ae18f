"""Calibration: the cost model from executions that are timed at load.

Whoever calibrates executes and reads the clocks. What is timed, when enough time was spent, what
follows from the times and whether it is believed is decided here, by numbers alone.
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
"""The most often that a size is executed."""

BELIEVED_SCATTER: Final = 0.5
"""The root of the mean squared logarithm of measured / predicted from which a calibration is not
believed. Quiet machines give 0.05 to 0.2, one that eight others use up to 0.35."""

BELIEVED_WEIGHT: Final = 128.0
"""Executions that serve which all of a calibration counts as much as: see LiveCost."""

DISBELIEVED_WEIGHT: Final = 1.0
"""The same of a calibration that is not believed."""

_MOST_SIZES: Final = 48
_LEAST_SIZES: Final = 4
_LARGEST_SHARE: Final = 1 / 8
"""Of the budget, the longest execution that is timed where there are _LEAST_SIZES others: several
of each size are worth more than one that takes it all."""

_WALL_PREFERENCE: Final = 1.2
"""How much more the wall clock may scatter than CPU time, which does not see how well threads share
the work."""

_COMPUTES: Final = 4.0
"""Wall clock per CPU time up to which a process that is disturbed counts as computing."""

_LOWER_QUARTILE: Final = 25
_TICK_S: Final = 1e-9  # for clocks too coarse to see an execution


class Sample(NamedTuple):
    """What one execution took."""

    wall_s: float
    cpu_s: float | None = None
    """CPU time of this process, all threads together; None if others compute for it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One size that was executed."""

    gear: Gear
    seconds: float
    samples: int = 1
    """How many executions this is the lower quartile of."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A cost model, and what it was fitted to."""

    cost: CostModel
    evidence: CostEvidence
    timings: tuple[Timing, ...]
    """By growing work."""
    failures: tuple[tuple[Gear, EngineFault], ...]
    """Sizes that the engine could not execute; the model does without them."""
    doubt: str = ""
    """Why the samples are not believed; empty if they are. `cost` is then the cautious one."""

    def __str__(self) -> str:
        failed = "".join(f"; {gear} left out: {fault}" for gear, fault in self.failures)
        doubt = (
            f"; not believed, because {self.doubt}: requests are executed alone until executions "
            "that serve show what is gained together"
        )
        told = f"{self.cost}, from executions of {len(self.timings)} size(s)"
        return f"{told}{doubt if self.doubt else ''}{failed}"


@dataclass(slots=True)
class _Size:
    """One size while it is timed."""

    gear: Gear
    samples: list[Sample] = field(default_factory=list)

    @property
    def counted(self) -> list[Sample]:
        """Engines allocate in their first execution of a size: it counts if there is no other."""
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
    """The cost model of least squared relative error over sizes that are executed now.

    execute: runs one execution at a size and says what it took; it may raise EngineFault. terms:
    see CostModel. budget_s: of the wall clock, for all executions together, but for the very first,
    which warms the engine up and is not counted. Sizes take turns, so that what disturbs the
    machine for a while disturbs all alike; of each the lower quartile counts. None is executed
    from the second on that could exceed what is left of the budget.

    Others who use the same cores make the wall clock several times as long, and hardly change the
    CPU time: where that is known, it counts instead of a wall clock whose samples scatter more.

    Samples that no cost model explains, or of one size where there are several, are not believed:
    the cost is then one by which nothing is gained together. Deterministic, given the samples.
    Raises EngineFault if no size could be executed.
    """
    yardstick = CostModel(0.0, 0.0, 0.0, terms)
    sizes = [_Size(gear) for gear in _sizes(gears, yardstick)]
    failures = _execute_in_turns(execute, sizes, yardstick, budget_s)
    timed = [size for size in sizes if size.samples]
    if not timed:
        raise failures[-1][1]
    fit = _Fit.of([_timing(size, _wall_s) for size in timed], terms)
    if unit := _wall_per_cpu(timed):
        by_cpu = _Fit.of([_timing(size, lambda each: _cpu_s(each) * unit) for size in timed], terms)
        if fit.scatter > by_cpu.scatter * _WALL_PREFERENCE:
            fit = by_cpu
    cost, evidence, doubt = fit.cost, fit.evidence, ""
    if len(timed) == 1 and len(sizes) > 1:
        doubt = "only one size could be timed"
    elif fit.scatter > BELIEVED_SCATTER:
        doubt = f"samples scatter by {math.expm1(fit.scatter):.0%} around any model"
    weight = DISBELIEVED_WEIGHT if doubt else BELIEVED_WEIGHT
    evidence = evidence.scaled(weight / evidence.weight)
    if doubt:
        cost = _cautious(fit.timings, yardstick)
    return Calibration(cost, evidence, tuple(fit.timings), tuple(failures), doubt)


def _execute_in_turns(
    execute: Callable[[Gear], Sample], sizes: list[_Size], yardstick: CostModel, budget_s: float
) -> list[tuple[Gear, EngineFault]]:
    """Time the sizes, by growing work; the failures."""
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
                    execute(size.gear)  # engines choose kernels in their very first execution
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
    """A bound on the time of this size that holds for every cost model that explains the others.

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


def _wall_s(sample: Sample) -> float:
    return sample.wall_s


def _cpu_s(sample: Sample) -> float:
    return sample.cpu_s or 0.0


def _timing(size: _Size, seconds_of: Callable[[Sample], float]) -> Timing:
    taken = [seconds_of(sample) for sample in size.counted]
    seconds = float(np.percentile(taken, _LOWER_QUARTILE))
    return Timing(size.gear, max(seconds, _TICK_S), len(taken))


def _wall_per_cpu(timed: Sequence[_Size]) -> float | None:
    """Seconds of the wall clock for one of CPU time; None where CPU time tells nothing.

    It does not where others compute, nor of executions that wait more than they compute.
    """
    samples = [sample for size in timed for sample in size.counted]
    shares = [each.wall_s / _cpu_s(each) for each in samples if _cpu_s(each) >= _TICK_S]
    if len(shares) < len(samples):
        return None
    least = float(np.percentile(shares, _LOWER_QUARTILE))
    # Never beyond the CPU time itself: the wall clock of one thread that nobody disturbs.
    return None if least > _COMPUTES else min(least, 1.0)


@dataclass(frozen=True, slots=True)
class _Fit:
    """The cost model that timings say."""

    timings: list[Timing]
    cost: CostModel
    evidence: CostEvidence
    scatter: float
    """See BELIEVED_SCATTER."""

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
            # Nothing tells launch and elements apart: half of the time is given to each.
            half = sum(seconds) / len(seconds) / 2
            cost = CostModel(max(half, LAUNCH_FLOOR_S), half / works.pop(), 0.0, terms)
        errors = [
            math.log(timing.seconds / cost.seconds(timing.gear.rows, timing.gear.extents))
            for timing in timings
            if timing.seconds > LAUNCH_FLOOR_S  # no model goes below
        ]
        squares = sum(error * error for error in errors)
        return cls(timings, cost, evidence, math.sqrt(squares / max(1, len(errors))))


def _cautious(timings: Sequence[Timing], yardstick: CostModel) -> CostModel:
    """The cost of few rows by which an execution of several gains nothing but the least launch."""
    fewest = min(timing.gear.rows for timing in timings)
    growths = [
        timing.seconds / (fewest**1.5 * yardstick.elements(timing.gear.extents))
        for timing in timings
        if timing.gear.rows == fewest
    ]
    return CostModel(LAUNCH_FLOOR_S, 0.0, 0.0, yardstick.terms, float(np.median(growths)))


def _sizes(gears: Gears, yardstick: CostModel) -> list[Gear]:
    """The sizes worth timing, by growing work: few and many rows, small and large extents."""

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
    """1, 2, 4, 8, ... and `most`."""
    rows = 1
    while rows < most:
        yield rows
        rows *= 2
    yield most
