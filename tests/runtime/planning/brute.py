"""Find the best gears by exhaustive search, for small instances."""

import math
from itertools import combinations, pairwise, product

import numpy as np

from ge_runtime.planning.histogram import Histogram


def histogram_of(counted, axes):
    histogram = Histogram(axes)
    for size, count in counted.items():
        histogram.add(size, count)
    return histogram


def executed(counted, gears):
    """Return the elements if each size runs in the smallest gear that holds it."""
    return sum(
        count * min(math.prod(gear) for gear in gears if holds(gear, size))
        for size, count in counted.items()
    )


def holds(gear, size):
    return all(map(int.__ge__, gear, size))


def all_tables(edges, most, limit):
    """Yield every set of at most `most` gears among `edges` that contains the limit."""
    others = [gear for gear in product(*edges) if gear != limit]
    for extra in range(most):
        for chosen in combinations(others, extra):
            yield (*chosen, limit)


def is_chain(gears):
    ordered = sorted(gears)
    return all(holds(large, small) for small, large in pairwise(ordered))


def banded(counted, edges, most):
    """Return the elements of the best bands along the first axis."""
    heights, widths = edges
    best = math.inf
    for cuts in range(min(most, len(heights))):
        for chosen in combinations(heights[:-1], cuts):
            tops = [*chosen, heights[-1]]
            bands = [[] for _ in tops]
            for (height, width), count in counted.items():
                bands[next(i for i, top in enumerate(tops) if height <= top)].append((width, count))
            choices = []
            for top, band in zip(tops, bands, strict=True):
                widest = widths[-1] if top == heights[-1] else max((w for w, _ in band), default=1)
                narrower = [width for width in widths if width < widest]
                choices.append(
                    [
                        (1 + extra, top * best_ladder(band, narrower, extra, widest))
                        for extra in range(min(most - 1, len(narrower)) + 1)
                    ]
                )
            for split in product(*choices):
                if sum(gears for gears, _ in split) <= most:
                    best = min(best, sum(cost for _, cost in split))
    return best


def best_ladder(band, narrower, extra, widest):
    return min(
        sum(count * min(w for w in (*chosen, widest) if w >= width) for width, count in band)
        for chosen in combinations(narrower, extra)
    )


def grids(edges, most):
    """Yield every product grid of at most `most` gears that contains the limit."""
    for rows, columns in product(range(1, most + 1), repeat=2):
        if rows * columns <= most:
            for heights in combinations(edges[0][:-1], rows - 1):
                for widths in combinations(edges[1][:-1], columns - 1):
                    yield tuple(product((*heights, edges[0][-1]), (*widths, edges[1][-1])))


def cumulated(occurring):
    within = np.array(occurring, np.float64)
    for axis in range(within.ndim):
        within = within.cumsum(axis=axis)
    return within
