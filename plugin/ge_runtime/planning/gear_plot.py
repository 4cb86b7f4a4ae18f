"""Plots of a gear plan: where the sizes are, where the gears, and where the padding goes.

The only module of this room that needs more than NumPy: matplotlib, imported when a picture is
drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ge_runtime.errors import RuntimeFault
from ge_runtime.planning.gear_report import Comparison, percent, uses
from ge_runtime.planning.size_demand import SizeDemand, element_counts, size_text
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart whatever colours one sees; in print, by markers and hatches.
_DATA: Final = "#0072B2"
_PADDING: Final = "#E69F00"
_BASELINE: Final = "#B0B0B0"
_GEAR: Final = "#303030"
_CURVES: Final = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))

_PERCENT: Final = "{x:.0%}"
_BINS: Final = 60
_DOTS: Final = 40
"""Along each axis of a picture of two; more would be a blot."""


def draw(path: Path, demand: SizeDemand, comparisons: Sequence[Comparison]) -> None:
    """Write a PNG to `path`: of one count its gears among the sizes, of several their waste.

    Raises RuntimeFault if matplotlib is not installed, or for one count of three or more axes;
    OSError if `path` cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot: no window, no state of the process
    except ImportError as error:
        raise RuntimeFault("a plot needs matplotlib: pip install 'ge-runtime[plot]'") from error
    if len(comparisons) > 1:
        figure = Figure((7, 4.2), layout="constrained")
        _draw_curve(figure.subplots(), demand, comparisons)
    elif len(demand.axes) == 1:
        figure = Figure((7, 6.6), layout="constrained")
        _draw_line(figure, demand, comparisons[0])
    elif len(demand.axes) == 2:
        figure = Figure((7, 7.4), layout="constrained")
        _draw_plane(figure, demand, comparisons[0])
    else:
        raise RuntimeFault(f"plot: found {len(demand.axes)} axes, expected 1 or 2")
    figure.savefig(path, format="png", dpi=150)


def _draw_line(figure: Figure, demand: SizeDemand, comparison: Comparison) -> None:
    """One axis: the sizes, above what they execute, above the waste of each choice."""
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
    _finish(sizes_at, elements_at, waste_at)


def _draw_plane(figure: Figure, demand: SizeDemand, comparison: Comparison) -> None:
    """Two axes: the sizes and the gears over them, above the waste of each choice."""
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
    _finish(plane_at, waste_at)


def _draw_waste(axes: Axes, demand: SizeDemand, comparison: Comparison) -> None:
    """A bar for each choice, and a line at the lower bound."""
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
    """The waste of each choice against the count of gears."""
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
    _finish(axes)


def _bin_edges(least: int, limit: int) -> Array:
    """Between whole numbers, and evenly spread in logarithms as far as these allow."""
    spread = np.geomspace(least - 0.5, limit + 0.5, _BINS + 1)
    return np.unique(np.round(spread - 0.5) + 0.5)


def _per_doubling(sizes: Array, shares: Array, edges: Array) -> Array:
    """The density of `shares` over the logarithm of size: bins of any width compare."""
    heights, _ = np.histogram(sizes, edges, weights=shares)
    density: Array = heights / np.diff(np.log2(edges))
    return density


def _finish(*panels: Axes) -> None:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
