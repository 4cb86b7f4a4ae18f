"""The gears of least expected padding.

Along one axis the result is the best set of gears there is. Along several, finding the best set
of boxes is a covering problem without a known efficient algorithm; two families have one: chains,
each gear within the next, and, for two axes, bands along either axis. The better of them is then
improved by moving one gear at a time for as long as that saves elements. So the result is never
worse than any chain, any bands, any product grid.

All sizes that occur are considered, as long as they are few enough: see COARSE and FINE. Of more,
a gear may have only some, spread evenly in their logarithms: it is then larger than the best one by
at most the ratio of two neighbours.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ge_runtime.planning.bands import best_bands
from ge_runtime.planning.chains import best_chains
from ge_runtime.planning.demand import Demand
from ge_runtime.planning.descent import improved
from ge_runtime.planning.tables import GearTable, in_order
from ge_runtime.specs import Array

COARSE: Final = 2304
"""Gears that dynamic programming chooses among: 2304 along one axis, 48 x 48 along two."""

FINE: Final = 65536
"""Gears that the moves choose among: 256 x 256 along two axes."""


def optimum(demand: Demand, count: int) -> GearTable:
    """At most `count` gears of least waste; fewer if more would save nothing."""
    return optima(demand, count)[-1]


def optima(demand: Demand, most: int) -> list[GearTable]:
    """The gears of least waste for every count from 1 to `most`, never worse than for less."""
    axes = len(demand.axes)
    fine = [_thinned(edge, FINE, axes) for edge in _edges(demand)]
    coarse = [_thinned(edge, COARSE, axes) for edge in fine]
    within = _occurring(demand, coarse)
    for axis in range(axes):
        within = within.cumsum(axis=axis)
    chains = best_chains(within, coarse, most)
    if axes == 1:
        return chains
    families = [chains]
    if axes == 2:
        upright, turned = best_bands(within, coarse, most), best_bands(within.T, coarse[::-1], most)
        families += [upright, [in_order((h, w) for w, h in table) for table in turned]]
    occurring = _occurring(demand, fine)
    found: list[GearTable] = [(demand.limit,)]
    for count, tables in enumerate(zip(*families, strict=True), 1):
        start = min((*tables, found[-1]), key=demand.executed)
        found.append(_used(demand, improved(start, count, occurring, fine)))
    return found[1:]


def _edges(demand: Demand) -> list[Array]:
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
    most = int(corners ** (1 / axes) + 1e-9)
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


def _occurring(demand: Demand, edges: list[Array]) -> Array:
    """[*len(edge) of each axis] float64: how many sizes each corner is the least to hold."""
    occurring = np.zeros([len(edge) for edge in edges])
    places = tuple(
        np.searchsorted(edge, column) for edge, column in zip(edges, demand.sizes.T, strict=True)
    )
    np.add.at(occurring, places, demand.counts)
    return occurring


def _used(demand: Demand, gears: GearTable) -> GearTable:
    """The gears that some size runs in, and the limit."""
    taken = set(demand.assign(gears).tolist())
    return tuple(gear for index, gear in enumerate(gears) if index in taken or gear == demand.limit)
