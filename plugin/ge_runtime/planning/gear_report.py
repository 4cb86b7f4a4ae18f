"""Reports on gears as text, JSON and plots: the optimum, baselines, and the use of each gear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ge_runtime.errors import RuntimeFault
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OPTIMUM: Final = "optimum"


@dataclass(frozen=True, slots=True)
class GearChoice:
    """Gears of one method, and their waste: padding / executed elements."""

    name: str
    gears: GearTable
    waste: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The optimum and the baselines for one count of gears."""

    count: int
    choices: tuple[GearChoice, ...]

    @property
    def best(self) -> GearChoice:
        """The optimal gears."""
        return self.choices[0]


@dataclass(frozen=True, slots=True)
class GearUse:
    """The use of one gear."""

    gear: tuple[int, ...]
    share: float
    """Share of all requests that the gear executes."""
    elements: float
    """Share of all executed elements that the gear executes."""
    waste: float
    """Share of padding in the elements that the gear executes."""


def compare(demand: SizeDemand, counts: Sequence[int]) -> list[Comparison]:
    """Return a comparison for each of `counts`, which are at least 1."""
    best = optimal_gears_by_count(demand, max(counts))  # one run returns all counts
    comparisons = []
    for count in counts:
        tables = {OPTIMUM: best[count - 1]}
        tables |= {name: choose(demand, count) for name, choose in BASELINES.items()}
        choices = (GearChoice(name, gears, demand.waste(gears)) for name, gears in tables.items())
        comparisons.append(Comparison(count, tuple(choices)))
    return comparisons


def uses(demand: SizeDemand, gears: GearTable) -> list[GearUse]:
    """Return the use of each gear, in the order of `gears`. The limit may be unused."""
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
    """Return the table for one count: waste and gears of each choice, and the lower bound."""
    rows = [("", "waste", "gears")]
    rows += [
        (choice.name, percent(choice.waste), gears_value(choice.gears))
        for choice in comparison.choices
    ]
    multiples = f", in multiples of {demand.align}" if demand.align > 1 else ""
    bound = f"a gear for each size{multiples}: {_candidate_count(demand):,} gears"
    return aligned_columns([*rows, ("lower bound", percent(demand.bound), bound)], "<><")


def curve_lines(demand: SizeDemand, comparisons: Sequence[Comparison]) -> list[str]:
    """Return the table for several counts: waste of each choice, and the optimal gears."""
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
    """Return the table of gears: shares of requests and elements, padding, and I/O memory."""
    rows = [("gear", "sizes", "elements", "padding", *(["I/O bytes"] if io_bytes else []))]
    for use in uses(demand, gears):
        numbers = map(percent, (use.share, use.elements, use.waste))
        memory = [f"{io_bytes[use.gear]:,}"] if io_bytes else []
        rows.append((size_text(use.gear), *numbers, *memory))
    return aligned_columns(rows, ">" * len(rows[0]))


def as_json(demand: SizeDemand, comparisons: Iterable[Comparison]) -> dict[str, object]:
    """Return the report as values for JSON; shares are from 0 to 1."""
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
    """Return a share as text, e.g. "31.2 %"."""
    return f"{share:.1%}".replace("%", " %")


def _candidate_count(demand: SizeDemand) -> int:
    return len(np.unique(demand.candidates, axis=0))


# -- baselines ------------------------------------------------------------------------------------
#
# Common ways to choose gears without planning. Each returns at most `count` gears, and fewer if
# alignment makes some equal. The largest is the limit; along several axes, gears grow together.


def linear(demand: SizeDemand, count: int) -> GearTable:
    """Return gears in equal steps up to the limit."""
    steps = np.arange(1, count + 1)[:, None]
    return _aligned(demand, -(-np.array(demand.limit, np.int64) * steps // count))


def quantiles(demand: SizeDemand, count: int) -> GearTable:
    """Return gears with equally many requests between neighbours along each axis."""
    steps = np.arange(1, count) / count * demand.total
    gears = np.empty((count, len(demand.axes)), np.int64)
    gears[-1] = demand.limit
    for axis, column in enumerate(demand.sizes.T):
        order = column.argsort(kind="stable")
        gears[:-1, axis] = column[order][demand.counts[order].cumsum().searchsorted(steps)]
    return _aligned(demand, gears)


def powers_of_two_below(demand: SizeDemand, count: int) -> GearTable:
    """Return the limit and powers of two below it."""
    return _aligned(demand, powers_of_two(demand.limit, count))


def _aligned(demand: SizeDemand, gears: GearTable | Array) -> GearTable:
    return sorted_gears(map(tuple, demand.align_up(np.array(gears, np.int64)).tolist()))


BASELINES: Final[Mapping[str, Callable[[SizeDemand, int], GearTable]]] = {
    "quantiles": quantiles,
    "powers of two": powers_of_two_below,
    "linear": linear,
}


# Okabe and Ito's palette: distinguishable with colour blindness. Markers help in grey prints.
_DATA: Final = "#0072B2"
_PADDING: Final = "#E69F00"
_BASELINE: Final = "#B0B0B0"
_GEAR: Final = "#303030"
_CURVES: Final = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))

_PERCENT: Final = "{x:.0%}"
_BINS: Final = 60
_DOTS: Final = 40
"""Dots along each axis of a plot of two axes; more would overlap."""


def draw(path: Path, demand: SizeDemand, comparisons: Sequence[Comparison]) -> None:
    """Write a PNG: for one count, the sizes and the gears; for several counts, the waste.

    Raises:
        RuntimeFault: matplotlib is not installed, or there is one count and more than two axes.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot, which has global state and windows
    except ImportError as error:
        raise RuntimeFault(
            "--plot: matplotlib is not installed. `pip install 'ge-runtime[plot]'`"
        ) from error
    figure = Figure((7, 4.2 if len(comparisons) > 1 else 7), layout="constrained")
    if len(comparisons) > 1:
        _draw_curve(figure.subplots(), demand, comparisons)
    elif len(demand.axes) == 1:
        _draw_line(figure, demand, comparisons[0])
    elif len(demand.axes) == 2:
        _draw_plane(figure, demand, comparisons[0])
    else:
        raise RuntimeFault(f"--plot: found {len(demand.axes)} axes, expected 1 or 2")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=150)


def _draw_line(figure: Figure, demand: SizeDemand, comparison: Comparison) -> None:
    """Draw one axis: the sizes, the executed elements, and the waste of each choice."""
    sizes_at, elements_at, waste_at = figure.subplots(3, height_ratios=(3, 3, 2))
    sizes, gears = demand.sizes[:, 0], comparison.best.gears
    edges = _bin_edges(int(sizes.min()), demand.limit[0])
    sizes_at.stairs(
        _per_doubling(sizes, demand.counts / demand.total, edges), edges, fill=True, color=_DATA
    )
    sizes_at.set_ylabel("sizes,\nshare per doubling")
    sizes_at.tick_params(labelbottom=False)
    for (gear,) in gears:
        sizes_at.annotate(
            str(gear), (gear, 1), (0, 4), rotation=90, ha="center", va="bottom",
            xycoords=("data", "axes fraction"), textcoords="offset points", fontsize="small",
        )  # fmt: skip

    executed = demand.counts * element_counts(np.array(gears))[demand.assign(gears)]
    data = _per_doubling(sizes, demand.useful / executed.sum(), edges)
    both = _per_doubling(sizes, executed / executed.sum(), edges)
    elements_at.stairs(data, edges, fill=True, color=_DATA, label="data")
    elements_at.stairs(
        both, edges, baseline=data, fill=True, facecolor=_PADDING, edgecolor="white", linewidth=0,
        hatch="////", label="padding",
    )  # fmt: skip
    elements_at.set_ylabel("executed elements,\nshare per doubling")
    elements_at.set_xlabel(f"{demand.axes[0]}; lines: gears")
    elements_at.legend(frameon=True, framealpha=1, edgecolor="none")
    for panel in (sizes_at, elements_at):
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.set_xlim(sizes.min() * 0.95, edges[-1])
        panel.set_ylim(bottom=0)
        panel.yaxis.set_major_formatter(_PERCENT)
        for (gear,) in gears:
            panel.axvline(gear, color=_GEAR, linewidth=1, zorder=1.5)
    _draw_waste(waste_at, demand, comparison)


def _draw_plane(figure: Figure, demand: SizeDemand, comparison: Comparison) -> None:
    """Draw two axes: the sizes with the gears around them, and the waste of each choice."""
    plane_at, waste_at = figure.subplots(2, height_ratios=(4, 1.2))
    height, width = demand.axes
    cell = np.maximum(1, np.array(demand.limit) // _DOTS)
    rounded = np.minimum(-(-demand.sizes // cell) * cell, demand.limit)
    places, where = np.unique(rounded, axis=0, return_inverse=True)
    counts = np.bincount(where.ravel(), demand.counts)
    plane_at.scatter(
        places[:, 1], places[:, 0], s=np.maximum(3, 200 * counts / counts.max()),
        color=_DATA, alpha=0.5, linewidths=0, clip_on=False,
    )  # fmt: skip
    for use in uses(demand, comparison.best.gears):
        top, right = use.gear
        plane_at.plot([0, right, right], [top, top, 0], color=_GEAR, linewidth=1.2, clip_on=False)
        plane_at.annotate(
            f"{size_text(use.gear)}\n{percent(use.share)}", (right, top), (3, 3),
            textcoords="offset points", fontsize="small", annotation_clip=False,
        )  # fmt: skip
    plane_at.set_xlim(0, demand.limit[1])
    plane_at.set_ylim(0, demand.limit[0])
    plane_at.set_xlabel(f"{width}; dots: sizes, area by their share; boxes: gears")
    plane_at.set_ylabel(height)
    _draw_waste(waste_at, demand, comparison)


def _draw_waste(axes: Axes, demand: SizeDemand, comparison: Comparison) -> None:
    """Draw a bar for each choice, and a line at the lower bound."""
    names = [choice.name for choice in comparison.choices]
    wastes = [choice.waste for choice in comparison.choices]
    colors = [_DATA, *[_BASELINE] * (len(names) - 1)]
    bars = axes.barh(names, wastes, color=colors, height=0.7)
    axes.bar_label(bars, [percent(waste) for waste in wastes], padding=3)
    axes.axvline(demand.bound, color=_GEAR, linestyle="--", linewidth=1)
    bound = f"lower bound {percent(demand.bound)}"
    axes.annotate(
        bound, (demand.bound, 1), (3, 2), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize="small",
    )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlim(0, max(wastes) * 1.15 or 1)
    axes.xaxis.set_major_formatter(_PERCENT)
    axes.set_xlabel(f"waste of {comparison.count} gears: padding / executed elements")


def _draw_curve(axes: Axes, demand: SizeDemand, comparisons: Sequence[Comparison]) -> None:
    """Draw the waste of each choice against the number of gears."""
    from matplotlib.ticker import MaxNLocator

    counts = [comparison.count for comparison in comparisons]
    names = [choice.name for choice in comparisons[0].choices]
    for index, (name, (color, marker)) in enumerate(zip(names, _CURVES, strict=True)):
        wastes = [comparison.choices[index].waste for comparison in comparisons]
        axes.plot(counts, wastes, color=color, marker=marker, markersize=5, label=name)
    axes.axhline(demand.bound, color=_GEAR, linestyle="--", linewidth=1, label="lower bound")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"gears of {' x '.join(demand.axes)}")
    axes.set_ylabel("waste: padding / executed elements")
    axes.legend(frameon=False)


def _bin_edges(least: int, limit: int) -> Array:
    """Return logarithmically spaced edges between integers."""
    spread = np.geomspace(least - 0.5, limit + 0.5, _BINS + 1)
    return np.unique(np.round(spread - 0.5) + 0.5)


def _per_doubling(sizes: Array, shares: Array, edges: Array) -> Array:
    """Return the density of `shares` over log2 of the size, for bins of any width."""
    heights, _ = np.histogram(sizes, edges, weights=shares)
    return heights / np.diff(np.log2(edges))
