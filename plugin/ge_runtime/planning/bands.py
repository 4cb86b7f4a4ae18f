"""Gears in bands: one axis is cut into bands, and each has gears of the other axis of its own.

The best cut and the best gears within each band, by exact dynamic programming. Every product grid
is such a set, with the same gears in all bands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ge_runtime.planning.tables import GearTable, in_order
from ge_runtime.specs import Array


def best_bands(within: Array, edges: list[Array], most: int) -> list[GearTable]:
    """The bands along the first axis of least executed elements, of up to 1, 2, ... `most` gears.

    edges: for both axes the sizes that a gear may have, ascending; the last is the limit.
    within: [len(edges[0]), len(edges[1])] float64, how many sizes the corner there holds.

    O(h**2 * w**2 * most + h**2 * most**2) time and O(h**2 * w * most) memory, for h first and w
    second edges.
    """
    heights, widths = edges
    ladders = _Ladders.of(within, widths, most)
    count = len(heights)
    # least[k, i]: the cost of all sizes below cut i in k gears; choice: the last band's gears
    # and where it begins.
    least = np.full((most + 1, count + 1), np.inf)
    least[0, 0] = 0
    choice: dict[tuple[int, int], tuple[int, int]] = {}
    for gears in range(1, most + 1):
        for top in range(1, count + 1):
            band = ladders.cost[:gears, :top, top] * heights[top - 1]
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
                rungs, bottom = choice[left, top]
                height = int(heights[top - 1])
                table += [(height, width) for width in ladders.widths(bottom, top, rungs)]
                left, top = left - rungs, bottom
            found.append(in_order(table))
        else:
            found.append(found[-1])
    return found


@dataclass(frozen=True, slots=True)
class _Ladders:
    """The best gears along the second axis, for every band [bottom, top) of the first."""

    cost: Array
    """[most, heights + 1, heights + 1]: executed widths of band (bottom, top) in so many gears."""
    came_from: Array
    """[most, heights + 1, heights + 1, widths]: the gear before the one at a width."""
    last: Array
    """[heights + 1, heights + 1]: the band's widest gear."""
    edges: Array

    @classmethod
    def of(cls, within: Array, widths: Array, most: int) -> _Ladders:
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
        for rung in range(1, most):
            longer = np.full_like(executed, np.inf)
            for width in range(1, span):
                # Moving on from a narrower gear, this one executes what that one does not hold.
                through = executed[:, :width] - widths[width] * held[:, :width]
                came = through.argmin(axis=1)
                longer[:, width] = through[bands, came] + widths[width] * held[:, width]
                came_from[rung, bottoms, tops, width] = came
            executed = longer
            cost[rung, bottoms, tops] = executed[bands, last]
        widest = np.zeros((count + 1, count + 1), np.int64)
        widest[bottoms, tops] = last
        return cls(cost, came_from, widest, widths)

    def widths(self, bottom: int, top: int, rungs: int) -> list[int]:
        """The gears of a band, widest first."""
        place, found = int(self.last[bottom, top]), []
        for rung in range(rungs - 1, -1, -1):
            found.append(int(self.edges[place]))
            place = int(self.came_from[rung, bottom, top, place])
        return found
