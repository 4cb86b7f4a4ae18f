"""Plans for people and for programs: the optimum beside its rivals, and what each gear does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from ge_runtime.memory.table import aligned
from ge_runtime.planning.demand import Demand
from ge_runtime.planning.optimum import optima
from ge_runtime.planning.rivals import RIVALS
from ge_runtime.planning.tables import GearTable, elements, size_text, value_of

OPTIMUM: Final = "optimum"


@dataclass(frozen=True, slots=True)
class Choice:
    """Gears, how they were chosen, and their waste: padded elements / all executed."""

    name: str
    gears: GearTable
    waste: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """For one count of gears the optimum, then its rivals."""

    count: int
    choices: tuple[Choice, ...]

    @property
    def best(self) -> Choice:
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


def compare(demand: Demand, counts: Sequence[int]) -> list[Comparison]:
    """The choices for each of `counts`, which are at least 1."""
    best = optima(demand, max(counts))
    comparisons = []
    for count in counts:
        tables = {OPTIMUM: best[count - 1]}
        tables |= {name: choose(demand, count) for name, choose in RIVALS.items()}
        choices = (Choice(name, gears, demand.waste(gears)) for name, gears in tables.items())
        comparisons.append(Comparison(count, tuple(choices)))
    return comparisons


def uses(demand: Demand, gears: GearTable) -> list[GearUse]:
    """What each of `gears` does, in their order. The limit may have nothing to do."""
    chosen = demand.assign(gears)
    counts = np.bincount(chosen, demand.counts, len(gears))
    useful = np.bincount(chosen, demand.useful, len(gears))
    executed = counts * elements(np.array(gears, np.int64))
    waste = np.divide(executed - useful, executed, np.zeros(len(gears)), where=executed > 0)
    return [
        GearUse(gear, *map(float, numbers))
        for gear, *numbers in zip(
            gears, counts / counts.sum(), executed / executed.sum(), waste, strict=True
        )
    ]


def choice_lines(demand: Demand, comparison: Comparison) -> list[str]:
    """One count: each choice with its waste and its gears, and the lower bound."""
    rows = [("", "waste", "gears")]
    rows += [
        (choice.name, percent(choice.waste), value_of(choice.gears))
        for choice in comparison.choices
    ]
    multiples = f", in multiples of {demand.align}" if demand.align > 1 else ""
    bound = f"a gear for each size{multiples}: {_candidate_count(demand):,} gears"
    return aligned([*rows, ("lower bound", percent(demand.bound), bound)], "<><")


def curve_lines(demand: Demand, comparisons: Sequence[Comparison]) -> list[str]:
    """Several counts: the waste of each choice, and the gears of the optimum."""
    names = [choice.name for choice in comparisons[0].choices]
    rows = [("gears", *names, "gears of the optimum")]
    rows += [
        (
            str(comparison.count),
            *(percent(choice.waste) for choice in comparison.choices),
            value_of(comparison.best.gears),
        )
        for comparison in comparisons
    ]
    rows.append(("bound", percent(demand.bound), *[""] * len(names)))
    return aligned(rows, ">" * (len(names) + 1) + "<")


def use_lines(
    demand: Demand, gears: GearTable, io_bytes: Mapping[tuple[int, ...], int] | None
) -> list[str]:
    """Gear by gear: its part of the sizes and of the elements, its padding, its I/O memory."""
    rows = [("gear", "sizes", "elements", "padding", *(["I/O bytes"] if io_bytes else []))]
    for use in uses(demand, gears):
        numbers = map(percent, (use.share, use.elements, use.waste))
        memory = [f"{io_bytes[use.gear]:,}"] if io_bytes else []
        rows.append((size_text(use.gear), *numbers, *memory))
    return aligned(rows, ">" * len(rows[0]))


def as_json(demand: Demand, comparisons: Iterable[Comparison]) -> dict[str, object]:
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


def _candidate_count(demand: Demand) -> int:
    return len(np.unique(demand.candidates, axis=0))
