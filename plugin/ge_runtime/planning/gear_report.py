"""Reports on gears, as text and JSON: the optimum beside baselines, and each gear's use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from ge_runtime.memory.plan import aligned_columns
from ge_runtime.planning.gear_optimizer import optimal_gears_by_count, powers_of_two
from ge_runtime.planning.size_demand import (
    GearTable,
    SizeDemand,
    element_counts,
    gears_value,
    size_text,
    sorted_gears,
)
from ge_runtime.specs import Array

OPTIMUM: Final = "optimum"


@dataclass(frozen=True, slots=True)
class GearChoice:
    """Gears, how they were chosen, and their waste: padded elements / all executed."""

    name: str
    gears: GearTable
    waste: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """For one count of gears the optimum, then the baselines."""

    count: int
    choices: tuple[GearChoice, ...]

    @property
    def best(self) -> GearChoice:
        """The optimum."""
        return self.choices[0]


@dataclass(frozen=True, slots=True)
class GearUse:
    """What one gear does."""

    gear: tuple[int, ...]
    share: float
    """Of all sizes, how many it executes."""
    elements: float
    """Of all executed elements, how many it executes."""
    waste: float
    """Of the elements it executes, how many are padding."""


def compare(demand: SizeDemand, counts: Sequence[int]) -> list[Comparison]:
    """The choices for each of `counts`, which are at least 1."""
    best = optimal_gears_by_count(demand, max(counts))  # one run finds those of all counts
    comparisons = []
    for count in counts:
        tables = {OPTIMUM: best[count - 1]}
        tables |= {name: choose(demand, count) for name, choose in BASELINES.items()}
        choices = (GearChoice(name, gears, demand.waste(gears)) for name, gears in tables.items())
        comparisons.append(Comparison(count, tuple(choices)))
    return comparisons


def uses(demand: SizeDemand, gears: GearTable) -> list[GearUse]:
    """What each of `gears` does, in their order. The limit may have nothing to do."""
    chosen = demand.assign(gears)
    counts = np.bincount(chosen, demand.counts, len(gears))
    useful = np.bincount(chosen, demand.useful, len(gears))
    executed = counts * element_counts(np.array(gears, np.int64))
    waste = np.divide(executed - useful, executed, np.zeros(len(gears)), where=executed > 0)
    return [
        GearUse(gear, *map(float, numbers))
        for gear, *numbers in zip(
            gears, counts / counts.sum(), executed / executed.sum(), waste, strict=True
        )
    ]


def choice_lines(demand: SizeDemand, comparison: Comparison) -> list[str]:
    """One count: each choice with its waste and its gears, and the lower bound."""
    rows = [("", "waste", "gears")]
    rows += [
        (choice.name, percent(choice.waste), gears_value(choice.gears))
        for choice in comparison.choices
    ]
    multiples = f", in multiples of {demand.align}" if demand.align > 1 else ""
    bound = f"a gear for each size{multiples}: {_candidate_count(demand):,} gears"
    return aligned_columns([*rows, ("lower bound", percent(demand.bound), bound)], "<><")


def curve_lines(demand: SizeDemand, comparisons: Sequence[Comparison]) -> list[str]:
    """Several counts: the waste of each choice, and the gears of the optimum."""
    names = [choice.name for choice in comparisons[0].choices]
    rows = [("gears", *names, "gears of the optimum")]
    rows += [
        (
            str(comparison.count),
            *(percent(choice.waste) for choice in comparison.choices),
            gears_value(comparison.best.gears),
        )
        for comparison in comparisons
    ]
    rows.append(("bound", percent(demand.bound), *[""] * len(names)))
    return aligned_columns(rows, ">" * (len(names) + 1) + "<")


def use_lines(
    demand: SizeDemand, gears: GearTable, io_bytes: Mapping[tuple[int, ...], int] | None
) -> list[str]:
    """Gear by gear: its part of the sizes and of the elements, its padding, its I/O memory."""
    rows = [("gear", "sizes", "elements", "padding", *(["I/O bytes"] if io_bytes else []))]
    for use in uses(demand, gears):
        numbers = map(percent, (use.share, use.elements, use.waste))
        memory = [f"{io_bytes[use.gear]:,}"] if io_bytes else []
        rows.append((size_text(use.gear), *numbers, *memory))
    return aligned_columns(rows, ">" * len(rows[0]))


def as_json(demand: SizeDemand, comparisons: Iterable[Comparison]) -> dict[str, object]:
    """All numbers of the above, wastes and shares from 0 to 1."""
    return {
        "axes": demand.axes,
        "limit": demand.limit,
        "align": demand.align,
        "sizes": demand.total,
        "sizes_beyond_limit": demand.beyond,
        "lower_bound": {"waste": demand.bound, "gears": _candidate_count(demand)},
        "plans": [
            {
                "count": comparison.count,
                "choices": {
                    choice.name: {"waste": choice.waste, "gears": choice.gears}
                    for choice in comparison.choices
                },
                "gears": [asdict(use) for use in uses(demand, comparison.best.gears)],
            }
            for comparison in comparisons
        ],
    }


def percent(share: float) -> str:
    """A share for people, e.g. "31.2 %"."""
    return f"{share:.1%}".replace("%", " %")


def _candidate_count(demand: SizeDemand) -> int:
    return len(np.unique(demand.candidates, axis=0))


# -- baselines: gears as people choose them without a plan ----------------------------------------
#
# Each gives `count` gears with the limit as the largest; along several axes they grow together.
# Where two of them fall together after alignment there are fewer.


def linear(demand: SizeDemand, count: int) -> GearTable:
    """Equal steps up to the limit."""
    steps = np.arange(1, count + 1)[:, None]
    return _aligned(demand, -(-np.array(demand.limit, np.int64) * steps // count))


def quantiles(demand: SizeDemand, count: int) -> GearTable:
    """Along each axis equally many sizes from one gear to the next."""
    steps = np.arange(1, count) / count * demand.total
    gears = np.empty((count, len(demand.axes)), np.int64)
    gears[-1] = demand.limit
    for axis, column in enumerate(demand.sizes.T):
        order = column.argsort(kind="stable")
        gears[:-1, axis] = column[order][demand.counts[order].cumsum().searchsorted(steps)]
    return _aligned(demand, gears)


def powers_of_two_below(demand: SizeDemand, count: int) -> GearTable:
    """The limit and `powers_of_two` below it."""
    return _aligned(demand, powers_of_two(demand.limit, count))


def _aligned(demand: SizeDemand, gears: GearTable | Array) -> GearTable:
    return sorted_gears(map(tuple, demand.align_up(np.array(gears, np.int64)).tolist()))


BASELINES: Final[Mapping[str, Callable[[SizeDemand, int], GearTable]]] = {
    "quantiles": quantiles,
    "powers of two": powers_of_two_below,
    "linear": linear,
}
