"""The cost model of executions: three coefficients, and their calibration at load.

Whoever calibrates executes and reads the clock. What is timed, when enough time was spent, and
what follows from the times is decided here, by numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.gears import Gear, Gears, Ints
from ge_runtime.errors import EngineFault

LAUNCH_FLOOR_S: Final = 50e-6
"""The least cost of an execution, however small. Gathering, bookkeeping and scattering take at
least this, and are not in the engine's time."""

_TICK_S: Final = 1e-9  # for clocks too coarse to see an execution
_MOST_SIZES: Final = 24  # timed in a calibration
_ONE: Final = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True)
class CostModel:
    """The time of an execution: launch + rows * (a * elements + b * elements^2).

    The elements are those of one row. The square stands for what looks at all pairs of positions,
    as attention does. No coefficient is negative.
    """

    launch_s: float
    """What every execution costs, however small."""
    element_s: float
    """Per element of a row."""
    element2_s: float
    """Per squared element of a row."""
    terms: tuple[tuple[str, ...], ...]
    """The distinct tuples of axes that inputs have; none: a row counts as one element."""

    def __str__(self) -> str:
        return (
            f"launch {self.launch_s * 1e6:.0f} us, element {self.element_s * 1e9:.3g} ns, "
            f"squared element {self.element2_s * 1e9:.3g} ns"
        )

    def elements(self, extents: Mapping[str, int]) -> int:
        """The elements of one row: for each term the product of its extents, added up."""
        if not self.terms:
            return 1
        return sum(math.prod(extents[axis] for axis in term) for term in self.terms)

    def seconds(self, rows: int, extents: Mapping[str, int]) -> float:
        """The time of an execution of `rows` rows of `extents`, in seconds."""
        elements = self.elements(extents)
        return self.launch_s + rows * ((self.element_s + self.element2_s * elements) * elements)

    def elements_many(self, extents: Mapping[str, Ints]) -> Ints:
        """`elements` for arrays that broadcast with each other."""
        products = [
            reduce(np.multiply, [extents[axis] for axis in term] or [_ONE]) for term in self.terms
        ]
        total: Ints = reduce(np.add, products or [_ONE])
        return total

    def seconds_many(self, rows: Ints, extents: Mapping[str, Ints]) -> NDArray[np.float64]:
        """`seconds` for arrays that broadcast with each other."""
        # In place, because batches of many requests make large arrays.
        elements = self.elements_many(extents)
        row_s = np.multiply(elements, self.element2_s, dtype=np.float64)
        row_s += self.element_s
        row_s *= elements
        result: NDArray[np.float64] = row_s * rows
        result += self.launch_s
        return result


@dataclass(frozen=True, slots=True)
class Timing:
    """One size that was executed."""

    gear: Gear
    seconds: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A cost model, and what it was fitted to."""

    cost: CostModel
    timings: tuple[Timing, ...]
    """In the order of execution."""
    failures: tuple[tuple[Gear, EngineFault], ...]
    """Sizes that the engine could not execute; the model does without them."""

    def __str__(self) -> str:
        failed = "".join(f"; {gear} left out: {fault}" for gear, fault in self.failures)
        return f"{self.cost}, from executions of {len(self.timings)} size(s){failed}"


def calibrate(
    execute: Callable[[Gear], float],
    gears: Gears,
    terms: Sequence[tuple[str, ...]],
    *,
    budget_s: float,
) -> Calibration:
    """The cost model of least squared relative error over sizes that are executed now.

    execute: runs one execution at a size and returns its seconds; it may raise EngineFault. terms:
    see CostModel. budget_s: for all executions together, but for the very first, which warms the
    engine up and is not counted. Each size is executed twice, if the budget allows, and the faster
    time counts. Sizes grow; from the second on, none is executed that could exceed what is left of
    the budget.

    The coefficients are not negative, and `launch_s` is at least LAUNCH_FLOOR_S. If only one size
    (of rows times elements) was timed, nothing tells the launch and the elements apart: half of the
    time is given to each. Deterministic, given the times. Raises EngineFault if no size could be
    executed.
    """
    yardstick = CostModel(0.0, 0.0, 0.0, tuple(terms))
    timings: list[Timing] = []
    failures: list[tuple[Gear, EngineFault]] = []
    left_s = budget_s
    for gear in _sizes(gears, yardstick):
        # Large graphs take seconds at their largest sizes: what may not fit is left out, and the
        # model extrapolates.
        if timings and _upper_bound_s(gear, timings, yardstick) > left_s:
            continue
        try:
            if not timings:
                execute(gear)  # engines allocate and choose kernels in their first execution
            seconds = execute(gear)
            left_s -= seconds
            if seconds <= left_s:
                again = execute(gear)
                left_s -= again
                seconds = min(seconds, again)
        except EngineFault as fault:
            failures.append((gear, fault))
            continue
        timings.append(Timing(gear, seconds))
    if not timings:
        raise failures[-1][1]
    launch_s, element_s, element2_s = _coefficients(timings, yardstick)
    cost = CostModel(max(launch_s, LAUNCH_FLOOR_S), element_s, element2_s, yardstick.terms)
    return Calibration(cost, tuple(timings), tuple(failures))


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
    """1, 4, 16, ... and `most`."""
    rows = 1
    while rows < most:
        yield rows
        rows *= 4
    yield most


def _upper_bound_s(gear: Gear, timings: Sequence[Timing], yardstick: CostModel) -> float:
    """A bound on the time at `gear` that holds for every cost model which explains `timings`.

    With coefficients that are not negative, time grows at most as the rows do, and at most as the
    square of a row's elements.
    """
    elements = yardstick.elements(gear.extents)
    return min(
        timing.seconds
        * max(1.0, gear.rows / timing.gear.rows)
        * max(1.0, elements / yardstick.elements(timing.gear.extents)) ** 2
        for timing in timings
    )


def _coefficients(timings: Sequence[Timing], yardstick: CostModel) -> tuple[float, float, float]:
    """Launch, per element, per squared element: least squares of the relative error, none < 0."""
    seconds = np.array([max(timing.seconds, _TICK_S) for timing in timings])
    rows = np.array([timing.gear.rows for timing in timings], np.float64)
    elements = np.array([yardstick.elements(t.gear.extents) for t in timings], np.float64)
    work = rows * elements
    if np.ptp(work) == 0.0:
        half = seconds.mean() / 2
        return float(half), float(half / work[0]), 0.0
    # Each column is what one second of its coefficient explains, relative to the time measured;
    # of unit length, because the columns differ by many orders of magnitude.
    ones = np.ones_like(work)
    columns = np.stack([ones, work, work * elements], axis=1) / seconds[:, None]
    lengths = np.linalg.norm(columns, axis=0)
    columns /= lengths
    best, least = np.zeros(3), np.inf
    # The optimum with bounds is the optimum without bounds of those coefficients that are not 0.
    for count in (1, 2, 3):
        for chosen in map(list, combinations(range(3), count)):
            solution, _, rank, _ = np.linalg.lstsq(columns[:, chosen], ones, rcond=None)
            error = float(np.square(columns[:, chosen] @ solution - 1).sum())
            if rank == count and (solution >= 0).all() and error < least:
                best, least = np.zeros(3), error
                best[chosen] = solution
    launch_s, element_s, element2_s = (best / lengths).tolist()
    return launch_s, element_s, element2_s
