"""Find the gears with the least expected padding.

Along one axis the result is optimal. Along several axes, the best set of boxes is a covering
problem without a known efficient algorithm. Efficient algorithms exist for two families of
solutions: chains, in which each gear contains the previous gear, and, for two axes, bands along
either axis. The best solution of both is improved by moving one gear at a time while that saves
elements. Therefore the result is never worse than any chain, any bands or any product grid.

All observed sizes are candidates, up to DP_CANDIDATES and MOVE_CANDIDATES. If there are more sizes,
the candidates are a subset that is evenly spaced in the logarithm. A gear is then larger than the
best gear by at most the ratio of two neighbouring candidates.

A corner is a combination of candidate sizes, one for each axis. It holds all smaller sizes.
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
"""Candidates for dynamic programming: 2304 along one axis, 48 x 48 along two.

The time grows with the square of their number.
"""

MOVE_CANDIDATES: Final = 65536
"""Candidates for moves: 256 x 256 along two axes."""


def optimal_gears(demand: SizeDemand, count: int) -> GearTable:
    """Return at most `count` gears with the least waste; fewer if more would save nothing."""
    return optimal_gears_by_count(demand, count)[-1]


def optimal_gears_by_count(demand: SizeDemand, most: int) -> list[GearTable]:
    """Return the gears with the least waste for every count from 1 to `most`.

    The waste never grows with the count.
    """
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
    """Return for each axis the candidate sizes, ascending; the last is the limit."""
    return [
        np.unique([*column.tolist(), limit])
        for column, limit in zip(demand.candidates.T, demand.limit, strict=True)
    ]


def _thinned(edge: Array, corners: int, axes: int) -> Array:
    """Return a subset of an axis's ascending sizes; `axes` of them have at most `corners` corners.

    Logarithmic intervals of equal length keep their largest size, so the last size is kept.
    """
    most = int(corners ** (1 / axes) + 1e-9)  # compensates rounding: 64 ** (1 / 3) is below 4
    if len(edge) <= most:
        return edge
    height = np.log(edge / edge[0])
    height /= height[-1]
    # The smallest size is an interval of its own.
    kept, steps = edge[-1:], max(1, most - 1)
    while True:
        ends = np.append(np.diff(np.ceil(height * steps - 1e-9)) > 0, True)
        if ends.sum() > most:
            return kept
        kept = edge[ends]
        steps += max(1, steps // 8)  # intervals between small sizes are empty, so try more


def _occurring(demand: SizeDemand, edges: list[Array]) -> Array:
    """Return [*len(edge) of each axis] float64: requests by the smallest corner that holds them."""
    occurring = np.zeros([len(edge) for edge in edges])
    places = tuple(
        np.searchsorted(edge, column) for edge, column in zip(edges, demand.sizes.T, strict=True)
    )
    np.add.at(occurring, places, demand.counts)
    return occurring


def _used(demand: SizeDemand, gears: GearTable) -> GearTable:
    """Return the gears that execute a size, and the limit."""
    taken = set(demand.assign(gears).tolist())
    return tuple(gear for index, gear in enumerate(gears) if index in taken or gear == demand.limit)


# -- chains: each gear contains the previous; along one axis every set of gears is a chain -------


def best_chains(within: Array, edges: list[Array], most: int) -> list[GearTable]:
    """Return the chains with the fewest executed elements, of up to 1, 2, ... `most` gears.

    Only corners that a size touches along every axis are considered; other gears could be smaller.
    Time is O(corners**2 * most), memory O(corners**2).

    Args:
        within: [*len(edge) of each axis] float64: number of requests that each corner holds.
        edges: for each axis the candidate sizes, ascending; the last is the limit.
        most: the largest number of gears.
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
    # After gear i, gear j executes the sizes that j holds and i does not.
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


# -- bands: the first axis is cut, and each band has gears along the second; grids are bands -----


def best_bands(within: Array, edges: list[Array], most: int) -> list[GearTable]:
    """Return the bands along the first axis with the fewest executed elements.

    Time is O(h**2 * w**2 * most + h**2 * most**2), memory O(h**2 * w * most), for h candidates
    along the first axis and w along the second.

    Args:
        within: [h, w] float64: number of requests that each corner holds.
        edges: for both axes the candidate sizes, ascending; the last is the limit.
        most: the largest number of gears.

    Returns:
        The gears for counts of up to 1, 2, ... `most`.
    """
    heights, widths = edges
    bands = _BandGears.of(within, widths, most)
    count = len(heights)
    # least[k, i]: the cost of all sizes below cut i in k gears. choice: the number of gears of the
    # last band, and its start.
    least = np.full((most + 1, count + 1), np.inf)
    least[0, 0] = 0
    choice: dict[tuple[int, int], tuple[int, int]] = {}
    for gears in range(1, most + 1):
        for top in range(1, count + 1):
            band = bands.cost[:gears, :top, top] * heights[top - 1]
            # Row r: the last band has r + 1 gears, and the bands below it have the other gears.
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
    """The best gears along the second axis for every band [bottom, top) of the first."""

    cost: Array
    """[most, heights + 1, heights + 1]: executed widths of a band in 1, 2, ... gears."""
    came_from: Array
    """[most, heights + 1, heights + 1, widths]: the gear before a gear of this width."""
    last: Array
    """[heights + 1, heights + 1]: the widest gear of a band."""
    edges: Array

    @classmethod
    def of(cls, within: Array, widths: Array, most: int) -> _BandGears:
        count, span = within.shape
        below = np.vstack([np.zeros((1, span)), within])
        bottoms, tops = np.triu_indices(count + 1, 1)
        held = below[tops] - below[bottoms]  # [bands, widths]: requests up to each width
        # The widest gear of a band is its widest size; in the uppermost band it is the limit.
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
                # The gear of this width executes the sizes that the narrower gear does not hold.
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
        """Return the best `count` gears of a band, widest first."""
        place, found = int(self.last[bottom, top]), []
        for narrower in range(count - 1, -1, -1):
            found.append(int(self.edges[place]))
            place = int(self.came_from[narrower, bottom, top, place])
        return found


# -- local search: one gear at a time ------------------------------------------------------------


def improve(gears: GearTable, count: int, occurring: Array, edges: list[Array]) -> GearTable:
    """Return at most `count` gears that execute no more elements than `gears`.

    Each gear except the limit is moved to the corner where it saves most, until no move saves
    anything. Then no set that differs in a single gear is better.

    Args:
        gears: the start, with the limit last.
        count: the largest number of gears.
        occurring: [*len(edge) of each axis] float64: requests by the smallest corner that holds
            them.
        edges: for each axis the candidate sizes, ascending, including those of `gears`.
    """
    area = _areas(edges)
    places = [
        tuple(int(np.searchsorted(edge, size)) for edge, size in zip(edges, gear, strict=True))
        for gear in gears
    ]
    *moving, limit = places
    # Additional gears start at the limit, where they save nothing.
    moving += [limit] * (count - len(gears))
    moved = True
    while moved:
        moved = False
        for index, place in enumerate(moving):
            saved = _savings_of_one_more(
                [*moving[:index], *moving[index + 1 :], limit], occurring, area
            )
            best = np.unravel_index(saved.argmax(), saved.shape)
            # More than rounding errors, which could make two moves undo each other forever.
            if saved[best] > saved[place] * (1 + 1e-12):
                moving[index] = tuple(map(int, best))
                moved = True
    return sorted_gears(
        tuple(int(edge[at]) for edge, at in zip(edges, place, strict=True))
        for place in [*moving, limit]
    )


def _savings_of_one_more(others: list[tuple[int, ...]], occurring: Array, area: Array) -> Array:
    """Return the elements that one more gear would save at each corner."""
    executed = np.full(area.shape, np.inf)
    for place in others:
        inside = tuple(slice(at + 1) for at in place)
        executed[inside] = np.minimum(executed[inside], area[place])
    saved = np.zeros(area.shape)
    # Sizes that execute equally many elements save equally; one cumulative sum covers them.
    for before in {area[place] for place in others}:
        held = np.where(executed == before, occurring, 0)
        for axis in range(held.ndim):
            held = held.cumsum(axis=axis)
        saved += np.maximum(before - area, 0) * held
    return saved


def _areas(edges: list[Array]) -> Array:
    """Return [*len(edge) of each axis] float64: the elements of a gear at each corner."""
    area: Array = np.ones(())
    for edge in edges:
        area = area[..., None] * edge.astype(np.float64)
    return area


# -- `gears.<axes> = "auto 4"`, chosen when a model is loaded -------------------------------------

MIN_SIZES: Final = 100
"""The smallest number of recorded sizes; fewer do not represent the traffic."""


@dataclass(frozen=True, slots=True)
class DerivedGears:
    """Gears, and the way they were chosen."""

    gears: GearTable
    """Ordered by elements; the last is the limit."""
    how: str
    """One line for the log."""


def derive_gears(
    axes: Sequence[str], limits: Mapping[str, int], count: int, histogram: Histogram | None
) -> DerivedGears:
    """Choose at most `count` gears of `axes`; the largest has the sizes of `limits`.

    With a histogram, which may have more axes, the gears have the least expected padding. Without
    a histogram, or with fewer than MIN_SIZES sizes, the gears are powers of two that grow together
    along all axes.
    """
    if histogram is None:
        return _without_histogram(axes, limits, count, "there is no histogram")
    try:
        demand = SizeDemand.of(histogram.project(axes), limits=limits)
    except HistogramFault as fault:
        return _without_histogram(axes, limits, count, f"of a {fault}")
    if demand.total < MIN_SIZES:
        held = (
            f"the histogram has {demand.total:.0f} sizes within the limit, fewer than {MIN_SIZES}"
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
    """Return the limit and the powers of two nearest to a half, a quarter, ... of the limit."""
    heights = [round(math.log2(size)) for size in limit]
    smaller = (tuple(1 << max(0, height - step) for height in heights) for step in range(1, count))
    return sorted_gears([*smaller, limit])


def _derived(axes: Sequence[str], gears: GearTable, how: str) -> DerivedGears:
    return DerivedGears(gears, f'{gears_key(axes)} = "{gears_value(gears)}": {how}')
