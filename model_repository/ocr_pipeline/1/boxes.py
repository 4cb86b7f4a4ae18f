"""Lines of text as rectangles, from the detector's probabilities.

The detector marks the core of each line, shrunk so that neighbours stay apart ("differentiable
binarisation"). Pixels above a threshold that touch are one core; the least rectangle around it,
grown back, is the line.
"""

import numpy as np

CORE = 0.3
"""From this probability a pixel is of a core."""
LINE = 0.5
"""Cores whose mean probability is less are dropped."""
GROWTH = 1.6
"""How far a core grows on each side, in its area by its perimeter."""
THINNEST = 3
"""Cores thinner than this many pixels are dropped."""


def lines(probability):
    """The lines of a page, FP32 [n, 4, 2]: corners x, y, clockwise from the top left one.

    probability: FP32 [height, width].
    """
    mask = probability > CORE
    # Cores that a hair parts are one: each pixel grows by one to the right and downwards.
    mask[:, 1:] |= mask[:, :-1].copy()
    mask[1:] |= mask[:-1].copy()
    rows, starts, ends = _runs(mask)
    sums = np.concatenate(([0.0], np.cumsum(probability, dtype=np.float64)))
    width = probability.shape[1]
    totals = sums[rows * width + ends] - sums[rows * width + starts]
    boxes = []
    for runs in _connected(rows, starts, ends, width):
        if totals[runs].sum() < LINE * (ends[runs] - starts[runs]).sum():
            continue
        low, high = rows[runs], rows[runs] + 1
        corners = [(starts[runs], low), (starts[runs], high), (ends[runs], low), (ends[runs], high)]
        box = _rectangle(np.concatenate([np.stack(pair, axis=1) for pair in corners]))
        if box is not None:
            boxes.append(box)
    return np.array(boxes, np.float32).reshape(-1, 4, 2)


def reading_order(boxes):
    """The order in which a page's lines are read, as indices [n]: row by row, as the page lies.

    boxes: [n, 4, 2], each from its first character's top; most lines say where down is.
    """
    right = np.median(boxes[:, 1] - boxes[:, 0], axis=0)
    right = right / (np.linalg.norm(right) or 1)
    middles = boxes.mean(axis=1)
    across, down = middles @ right, middles @ (-right[1], right[0])
    heights = np.linalg.norm(boxes[:, 3] - boxes[:, 0], axis=1)
    order, row = [], []
    for index in np.argsort(down, kind="stable"):
        if row and down[index] - down[row[0]] > heights[row[0]] / 2:
            order += sorted(row, key=lambda place: across[place])
            row = []
        row.append(index)
    return np.array(order + sorted(row, key=lambda place: across[place]), np.intp)


def _runs(mask):
    """Where the mask's rows are true: of each run its row, its start and what follows its end."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    return rows, starts, np.nonzero(edges == -1)[1]


def _connected(rows, starts, ends, width):
    """The runs that touch, also by a corner: an array of indices for each group."""
    # One number for row and column, in which runs are in order.
    stride = width + 2
    first = np.searchsorted(rows * stride + ends, (rows + 1) * stride + starts, "left")
    last = np.searchsorted(rows * stride + starts, (rows + 1) * stride + ends, "right")
    parent = list(range(len(rows)))

    def root(run):
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    for run, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        for below in range(begin, end):
            parent[root(below)] = root(run)
    roots = np.array([root(run) for run in range(len(rows))], np.intp)
    by_root = np.argsort(roots, kind="stable")
    return np.split(by_root, np.nonzero(np.diff(roots[by_root]))[0] + 1) if len(rows) else []


def _rectangle(points):
    """The least rectangle around a core, grown to its line, [4, 2]; None for one that is too thin.

    points: [n, 2], the corners of its pixels.
    """
    hull = _hull(points)
    edges = np.roll(hull, -1, axis=0) - hull
    directions = edges / np.linalg.norm(edges, axis=1, keepdims=True)
    normals = np.stack([-directions[:, 1], directions[:, 0]], axis=1)
    along, across = hull @ directions.T, hull @ normals.T
    sizes = np.stack([np.ptp(along, axis=0), np.ptp(across, axis=0)])
    best = int(sizes.prod(axis=0).argmin())
    size, axes = sizes[:, best], np.stack([directions[best], normals[best]])
    if size.min() < THINNEST:
        return None
    middle = np.array([(along[:, best].min() + along[:, best].max()) / 2])
    middle = np.append(middle, (across[:, best].min() + across[:, best].max()) / 2) @ axes
    size = size + 2 * GROWTH * size.prod() / (2 * size.sum())
    # The axis nearer to the horizontal is the one along which the line runs.
    if abs(axes[0, 0]) < abs(axes[1, 0]):
        axes, size = axes[::-1], size[::-1]
    right, down = axes * (size / 2)[:, None]
    right, down = right * np.sign(right[0] or 1), down * np.sign(down[1] or 1)
    return middle + np.array([-right - down, right - down, right + down, down - right])


def _hull(points):
    """The convex hull of points, [n, 2] in order around it (Andrew's monotone chain)."""
    points = sorted(set(map(tuple, points.tolist())))

    def chain(ordered):
        hull = []
        for point in ordered:
            while len(hull) > 1 and _turn(hull[-2], hull[-1], point) <= 0:
                hull.pop()
            hull.append(point)
        return hull[:-1]

    return np.array(chain(points) + chain(points[::-1]), np.float64)


def _turn(origin, first, second):
    """More than 0 if the way from origin over first to second bends one way, less if the other."""
    return (first[0] - origin[0]) * (second[1] - origin[1]) - (first[1] - origin[1]) * (
        second[0] - origin[0]
    )
