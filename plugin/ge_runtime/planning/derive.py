"""The gears of `gears.<axes> = "auto 4"`, chosen when a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.planning.demand import Demand
from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.planning.optimum import optimum
from ge_runtime.planning.rivals import powers_of_two
from ge_runtime.planning.tables import GearTable, key_of, value_of

ENOUGH: Final = 100
"""Sizes. Gears chosen from less would fit the first few requests and nobody else."""


@dataclass(frozen=True, slots=True)
class Derived:
    """Gears, and where they come from."""

    gears: GearTable
    """Fewest elements first; the largest is the limit."""
    how: str
    """One line for the log."""


def derive(
    axes: Sequence[str], limits: Mapping[str, int], count: int, histogram: Histogram | None
) -> Derived:
    """At most `count` gears of `axes`, the largest as large as `limits` allow.

    Of least expected padding for the sizes in `histogram`, which may have more axes. Without one,
    or where it says too little, powers of two, growing together along all axes.
    """
    if histogram is None:
        return _spread(axes, limits, count, "there is no histogram")
    try:
        demand = Demand.of(histogram.project(axes), limits=limits)
    except HistogramFault as fault:
        return _spread(axes, limits, count, f"of a {fault}")
    if demand.total < ENOUGH:
        held = f"the histogram holds {demand.total:.0f} sizes within the limit, fewer than {ENOUGH}"
        return _spread(axes, limits, count, held)
    gears = optimum(demand, count)
    padding = f"{demand.waste(gears):.1%} padding expected of {demand.total:,.0f} recorded sizes"
    return _said(axes, gears, padding)


def _spread(axes: Sequence[str], limits: Mapping[str, int], count: int, why: str) -> Derived:
    gears = powers_of_two(tuple(limits[axis] for axis in axes), count)
    return _said(axes, gears, f"powers of two, because {why}")


def _said(axes: Sequence[str], gears: GearTable, how: str) -> Derived:
    return Derived(gears, f'{key_of(axes)} = "{value_of(gears)}": {how}')
