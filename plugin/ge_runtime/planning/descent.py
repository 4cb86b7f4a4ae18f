"""Improves gears of several axes by moving one at a time."""

from __future__ import annotations

import numpy as np

from ge_runtime.planning.tables import GearTable, in_order
from ge_runtime.specs import Array


def improved(gears: GearTable, count: int, occurring: Array, edges: list[Array]) -> GearTable:
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
            saved = _savings([*moving[:index], *moving[index + 1 :], limit], occurring, area)
            best = np.unravel_index(saved.argmax(), saved.shape)
            # More than rounding, or two equal moves could undo each other for ever.
            if saved[best] > saved[place] * (1 + 1e-12):
                moving[index] = tuple(map(int, best))
                moved = True
    return in_order(
        tuple(int(edge[at]) for edge, at in zip(edges, place, strict=True))
        for place in [*moving, limit]
    )


def _savings(others: list[tuple[int, ...]], occurring: Array, area: Array) -> Array:
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
