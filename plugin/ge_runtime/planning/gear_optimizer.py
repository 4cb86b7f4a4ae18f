"""The gear optimiser: the gears of least expected padding.

Along one axis the result is the best set of gears there is. Along several, finding the best set
of boxes is a covering problem without a known efficient algorithm; two families have one: chains,
each gear within the next, and, for two axes, bands along either axis. The better of them is then
improved by moving one gear at a time for as long as that saves elements. So the result is never
worse than any chain, any bands, any product grid.

All sizes that occur are considered, as long as they are few enough: see DP_CANDIDATES and
MOVE_CANDIDATES. Of more, a gear may have only some, spread evenly in their logarithms: it is then
larger than the best one by at most the ratio of two neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.planning.size_demand import (
    GearTable,
    SizeDemand,
    element_counts,
    gears_key,
    gears_value,
    sorted_gears,
)
from ge_runtime.specs import Array

DP_CANDIDATES: Final = 2304
"""Corners that dynamic programming chooses among: 2304 along one axis, 48 x 48 along two.

Its time grows with their square.
"""

MOVE_CANDIDATES: Final = 65536
"""Corners that the moves choose among: 256 x 256 along two axes."""


def optimal_gears(demand: SizeDemand, count: int) -> GearTable:
    """At most `count` gears of least waste; fewer if more would save nothing."""
    return optimal_gears_by_count(demand, count)[-1]


def optimal_gears_by_count(demand: SizeDemand, most: int) -> list[GearTable]:
    """The gears of least waste for every count from 1 to `most`, never worse than for less."""
    axes = len(demand.axes)
    fine = [_thinned(edge, MOVE_CANDIDATES, axes) for edge in _edges(demand)]
    coarse = [_thinned(edge, DP_CANDIDATES, axes) for edge in fine]
    within = _occurring(demand, coarse)
    for axis in range(axes):
        within = within.cumsum(axis=axis)
    chains = best_chains(within, coarse, most)
    if axes == 1:
        return chains
    families = [chains]
    if axes == 2:
        upright, turned = best_bands(within, coarse, most), best_bands(within.T, coarse[::-1], most)
        families += [upright, [sorted_gears((h, w) for w, h in table) for table in turned]]
    occurring = _occurring(demand, fine)
    found: list[GearTable] = [(demand.limit,)]
    for count, tables in enumerate(zip(*families, strict=True), 1):
        start = min((*tables, found[-1]), key=demand.executed)
        found.append(_used(demand, improve(start, count, occurring, fine)))
    return found[1:]


def _edges(demand: SizeDemand) -> list[Array]:
    """For each axis the sizes that a gear may have, ascending; the last is the limit."""
    return [
        np.unique([*column.tolist(), limit])
        for column, limit in zip(demand.candidates.T, demand.limit, strict=True)
    ]


def _thinned(edge: Array, corners: int, axes: int) -> Array:
    """As many of the ascending sizes as one of `axes` may have, for so many corners in all.

    Evenly spread in their logarithms: in each of many steps of equal ratio the largest is kept,
    so the last of all always is.
    """
    most = int(corners ** (1 / axes) + 1e-9)  # more than rounding: 64 ** (1 / 3) is below 4
    if len(edge) <= most:
        return edge
    height = np.log(edge / edge[0])
    height /= height[-1]
    kept, steps = edge[-1:], most
    while True:
        ends = np.append(np.diff(np.ceil(height * steps - 1e-9)) > 0, True)
        if ends.sum() > most:
            return kept
        kept = edge[ends]
        steps += max(1, steps // 8)  # small sizes leave steps empty: there can be more of them


def _occurring(demand: SizeDemand, edges: list[Array]) -> Array:
    """[*len(edge) of each axis] float64: how many sizes each corner is the least to hold."""
    occurring = np.zeros([len(edge) for edge in edges])
    places = tuple(
        np.searchsorted(edge, column) for edge, column in zip(edges, demand.sizes.T, strict=True)
    )
    np.add.at(occurring, places, demand.counts)
    return occurring


def _used(demand: SizeDemand, gears: GearTable) -> GearTable:
    """The gears that some size runs in, and the limit."""
    taken = set(demand.assign(gears).tolist())
    return tuple(gear for index, gear in enumerate(gears) if index in taken or gear == demand.limit)


# -- chains: each gear holds the one before; along one axis every set of gears is one -----------


def best_chains(within: Array, edges: list[Array], most: int) -> list[GearTable]:
    """The chains of least executed elements, of up to 1, 2, ... `most` gears.

    edges: for each axis the sizes that a gear may have, ascending; the last is the limit.
    within: [*len(edge) of each axis] float64, how many sizes the corner at each place holds.

    O(corners**2 * most) time and O(corners**2) memory, where corners are those that some size
    touches along every axis: a gear that none touches could be smaller.
    """
    touched = np.ones(within.shape, bool)
    for axis in range(within.ndim):
        touched &= np.diff(within, axis=axis, prepend=0) > 0
    touched[(-1,) * within.ndim] = True
    places = np.argwhere(touched)
    corners = np.stack([edge[places[:, axis]] for axis, edge in enumerate(edges)], axis=1)
    area, held = element_counts(corners), within[touched]

    contains = np.ones((len(corners), len(corners)), bool)
    for column in corners.T:
        contains &= column[:, None] >= column
    np.fill_diagonal(contains, False)
    # Going from gear i to gear j, j executes what it holds and i does not.
    step = np.where(contains, area[:, None] * (held[:, None] - held), np.inf)

    cost = area * held
    costs, came_from = [cost], [np.zeros(len(corners), np.int64)]
    for _ in range(1, most):
        through = step + cost
        came = through.argmin(axis=1)
        cost = through[np.arange(len(corners)), came]
        costs.append(cost)
        came_from.append(came)

    best: list[GearTable] = []
    least = math.inf
    for last in range(most):
        if costs[last][-1] < least:
            least = costs[last][-1]
            place, path = len(corners) - 1, []
            for came in reversed(came_from[: last + 1]):
                path.append(tuple(corners[place].tolist()))
                place = int(came[place])
            best.append(tuple(reversed(path)))
        else:
            best.append(best[-1])
    return best


# -- bands: one axis is cut, each band has gears of the other axis; product grids are such sets --


def best_bands(within: Array, edges: list[Array], most: int) -> list[GearTable]:
    """The bands along the first axis of least executed elements, of up to 1, 2, ... `most` gears.

    edges: for both axes the sizes that a gear may have, ascending; the last is the limit.
    within: [len(edges[0]), len(edges[1])] float64, how many sizes the corner there holds.

    O(h**2 * w**2 * most + h**2 * most**2) time and O(h**2 * w * most) memory, for h first and w
    second edges.
    """
    heights, widths = edges
    bands = _BandGears.of(within, widths, most)
    count = len(heights)
    # least[k, i]: the cost of all sizes below cut i in k gears; choice: the last band's gears
    # and where it begins.
    least = np.full((most + 1, count + 1), np.inf)
    least[0, 0] = 0
    choice: dict[tuple[int, int], tuple[int, int]] = {}
    for gears in range(1, most + 1):
        for top in range(1, count + 1):
            band = bands.cost[:gears, :top, top] * heights[top - 1]
            # Row r: the last band has r + 1 gears, all below it the others.
            costs = least[gears - 1 :: -1, :top] + band
            best = int(costs.argmin())
            least[gears, top] = costs.flat[best]
            choice[gears, top] = (best // top + 1, best % top)

    found: list[GearTable] = []
    lowest = math.inf
    for gears in range(1, most + 1):
        if least[gears, count] < lowest:
            lowest = least[gears, count]
            table: list[tuple[int, int]] = []
            left, top = gears, count
            while top:
                in_band, bottom = choice[left, top]
                height = int(heights[top - 1])
                table += [(height, width) for width in bands.widths(bottom, top, in_band)]
                left, top = left - in_band, bottom
            found.append(sorted_gears(table))
        else:
            found.append(found[-1])
    return found


@dataclass(frozen=True, slots=True)
class _BandGears:
    """The best gears along the second axis, for every band [bottom, top) of the first."""

    cost: Array
    """[most, heights + 1, heights + 1]: executed widths of (bottom, top) in 1, 2, ... gears."""
    came_from: Array
    """[most, heights + 1, heights + 1, widths]: the gear before the one at a width."""
    last: Array
    """[heights + 1, heights + 1]: the band's widest gear."""
    edges: Array

    @classmethod
    def of(cls, within: Array, widths: Array, most: int) -> _BandGears:
        count, span = within.shape
        below = np.vstack([np.zeros((1, span)), within])
        bottoms, tops = np.triu_indices(count + 1, 1)
        held = below[tops] - below[bottoms]  # [bands, widths]: how many sizes up to each width
        # A band's widest gear is its widest size; the uppermost must reach the limit.
        last = (held < held[:, -1:]).sum(axis=1)
        last[tops == count] = span - 1
        bands = np.arange(len(held))

        cost = np.full((most, count + 1, count + 1), np.inf)
        came_from = np.zeros((most, count + 1, count + 1, span), np.int32)
        executed = held * widths
        cost[0, bottoms, tops] = executed[bands, last]
        for more in range(1, most):
            longer = np.full_like(executed, np.inf)
            for width in range(1, span):
                # Moving on from a narrower gear, this one executes what that one does not hold.
                through = executed[:, :width] - widths[width] * held[:, :width]
                came = through.argmin(axis=1)
                longer[:, width] = through[bands, came] + widths[width] * held[:, width]
                came_from[more, bottoms, tops, width] = came
            executed = longer
            cost[more, bottoms, tops] = executed[bands, last]
        widest = np.zeros((count + 1, count + 1), np.int64)
        widest[bottoms, tops] = last
        return cls(cost, came_from, widest, widths)

    def widths(self, bottom: int, top: int, count: int) -> list[int]:
        """The best `count` gears of a band, widest first."""
        place, found = int(self.last[bottom, top]), []
        for narrower in range(count - 1, -1, -1):
            found.append(int(self.edges[place]))
            place = int(self.came_from[narrower, bottom, top, place])
        return found


# -- local search: one gear at a time ------------------------------------------------------------


def improve(gears: GearTable, count: int, occurring: Array, edges: list[Array]) -> GearTable:
    """At most `count` gears that execute no more than `gears`, which end with the limit.

    Each in turn is moved to the corner where it saves most over the others, until no move saves
    anything: then no set that differs in a single gear is better. The limit stays.

    edges: for each axis the sizes that a gear may have, ascending; those of `gears` among them.
    occurring: [*len(edge) of each axis] float64, how many sizes each corner is the least to hold.
    """
    area = _areas(edges)
    places = [
        tuple(int(np.searchsorted(edge, size)) for edge, size in zip(edges, gear, strict=True))
        for gear in gears
    ]
    *moving, limit = places
    # Gears that are not there yet begin at the limit, where they save nothing.
    moving += [limit] * (count - len(gears))
    moved = True
    while moved:
        moved = False
        for index, place in enumerate(moving):
            saved = _savings_of_one_more(
                [*moving[:index], *moving[index + 1 :], limit], occurring, area
            )
            best = np.unravel_index(saved.argmax(), saved.shape)
            # More than rounding, or two equal moves could undo each other for ever.
            if saved[best] > saved[place] * (1 + 1e-12):
                moving[index] = tuple(map(int, best))
                moved = True
    return sorted_gears(
        tuple(int(edge[at]) for edge, at in zip(edges, place, strict=True))
        for place in [*moving, limit]
    )


def _savings_of_one_more(others: list[tuple[int, ...]], occurring: Array, area: Array) -> Array:
    """The elements that one more gear saves, for each corner where it could be."""
    executed = np.full(area.shape, np.inf)
    for place in others:
        inside = tuple(slice(at + 1) for at in place)
        executed[inside] = np.minimum(executed[inside], area[place])
    saved = np.zeros(area.shape)
    # Sizes that execute equally many elements save equally: one cumulative sum for all of them.
    for before in {area[place] for place in others}:
        held = np.where(executed == before, occurring, 0)
        for axis in range(held.ndim):
            held = held.cumsum(axis=axis)
        saved += np.maximum(before - area, 0) * held
    return saved


def _areas(edges: list[Array]) -> Array:
    """[*len(edge) of each axis] float64: the elements of a gear at each corner."""
    area: Array = np.ones(())
    for edge in edges:
        area = area[..., None] * edge.astype(np.float64)
    return area


# -- `gears.<axes> = "auto 4"`, chosen when a model is loaded -------------------------------------

MIN_SIZES: Final = 100
"""Recorded sizes. Gears chosen from less would fit the first few requests and nobody else."""


@dataclass(frozen=True, slots=True)
class DerivedGears:
    """Gears, and where they come from."""

    gears: GearTable
    """Fewest elements first; the largest is the limit."""
    how: str
    """One line for the log."""


def derive_gears(
    axes: Sequence[str], limits: Mapping[str, int], count: int, histogram: Histogram | None
) -> DerivedGears:
    """At most `count` gears of `axes`, the largest as large as `limits` allow.

    Of least expected padding for the sizes in `histogram`, which may have more axes. Without one,
    or where it says too little, powers of two, growing together along all axes.
    """
    if histogram is None:
        return _without_histogram(axes, limits, count, "there is no histogram")
    try:
        demand = SizeDemand.of(histogram.project(axes), limits=limits)
    except HistogramFault as fault:
        return _without_histogram(axes, limits, count, f"of a {fault}")
    if demand.total < MIN_SIZES:
        held = (
            f"the histogram holds {demand.total:.0f} sizes within the limit, fewer than {MIN_SIZES}"
        )
        return _without_histogram(axes, limits, count, held)
    gears = optimal_gears(demand, count)
    padding = f"{demand.waste(gears):.1%} padding expected of {demand.total:,.0f} recorded sizes"
    return _derived(axes, gears, padding)


def _without_histogram(
    axes: Sequence[str], limits: Mapping[str, int], count: int, why: str
) -> DerivedGears:
    gears = powers_of_two(tuple(limits[axis] for axis in axes), count)
    return _derived(axes, gears, f"powers of two, because {why}")


def powers_of_two(limit: tuple[int, ...], count: int) -> GearTable:
    """`count` gears down from the limit: the powers of two nearest to its half, its quarter, ..."""
    heights = [round(math.log2(size)) for size in limit]
    smaller = (tuple(1 << max(0, height - step) for height in heights) for step in range(1, count))
    return sorted_gears([*smaller, limit])


def _derived(axes: Sequence[str], gears: GearTable, how: str) -> DerivedGears:
    return DerivedGears(gears, f'{gears_key(axes)} = "{gears_value(gears)}": {how}')
