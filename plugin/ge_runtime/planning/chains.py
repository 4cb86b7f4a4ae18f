"""Gears of which each contains the one before: the best, by exact dynamic programming.

Along one axis every set of gears is such a chain, so here the result is the best of all.
"""

from __future__ import annotations

import math

import numpy as np

from ge_runtime.planning.tables import GearTable, elements
from ge_runtime.specs import Array


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
    area, held = elements(corners), within[touched]

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
