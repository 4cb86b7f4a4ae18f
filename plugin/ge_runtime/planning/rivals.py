"""Gears as people choose them without a plan: what the optimum is compared with.

Each choice gives `count` gears with the limit as the largest; along several axes they grow
together. Where two of them fall together after alignment there are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ge_runtime.planning.demand import Demand
from ge_runtime.planning.tables import GearTable, in_order
from ge_runtime.specs import Array


def linear(demand: Demand, count: int) -> GearTable:
    """Equal steps up to the limit."""
    steps = np.arange(1, count + 1)[:, None]
    return _aligned(demand, -(-np.array(demand.limit, np.int64) * steps // count))


def quantiles(demand: Demand, count: int) -> GearTable:
    """Along each axis equally many sizes from one gear to the next."""
    steps = np.arange(1, count) / count * demand.total
    gears = np.empty((count, len(demand.axes)), np.int64)
    gears[-1] = demand.limit
    for axis, column in enumerate(demand.sizes.T):
        order = column.argsort(kind="stable")
        gears[:-1, axis] = column[order][demand.counts[order].cumsum().searchsorted(steps)]
    return _aligned(demand, gears)


def halves(demand: Demand, count: int) -> GearTable:
    """The limit and `powers_of_two` below it."""
    return _aligned(demand, powers_of_two(demand.limit, count))


def _aligned(demand: Demand, gears: GearTable | Array) -> GearTable:
    return in_order(map(tuple, demand.align_up(np.array(gears, np.int64)).tolist()))


def powers_of_two(limit: tuple[int, ...], count: int) -> GearTable:
    """`count` gears down from the limit: the powers of two nearest to its half, its quarter, ..."""
    heights = [round(math.log2(size)) for size in limit]
    smaller = (tuple(1 << max(0, height - step) for height in heights) for step in range(1, count))
    return in_order([*smaller, limit])


RIVALS: Final[Mapping[str, Callable[[Demand, int], GearTable]]] = {
    "quantiles": quantiles,
    "powers of two": halves,
    "linear": linear,
}
