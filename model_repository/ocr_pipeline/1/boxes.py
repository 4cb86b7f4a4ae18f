"""Convert the detector's probabilities to rectangles around lines of text.

The detector marks the core of each line. A core is smaller than its line, so that the cores of
neighbouring lines do not touch ("differentiable binarisation"). Connected pixels above a threshold
are one core. Its smallest rectangle is enlarged to the size of the line.
"""

import numpy as np

CORE = 0.3
"""A pixel with at least this probability belongs to a core."""
LINE = 0.5
"""Cores with a lower mean probability are discarded."""
GROWTH = 1.6
"""Growth of a core on each side, as a multiple of its area divided by its perimeter."""
THINNEST = 3
"""Cores thinner than this number of pixels are discarded."""


def lines(probability):
    """Return the lines of a page, FP32 [n, 4, 2]: corners x, y, clockwise from the top left.

    Args:
        probability: FP32 [height, width].
    """
    mask = probability > CORE
    # Join cores with a gap of one pixel: extend each pixel by one to the right and downwards.
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
    """Return the reading order of a page's lines, as indices [n], row by row.

    The median direction of the lines is taken as the direction of the page.

    Args:
        boxes: [n, 4, 2], the corners of each line, from the top of its first character.
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
    """Return row, start and end (exclusive) of each run of true pixels in the mask's rows."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    return rows, starts, np.nonzero(edges == -1)[1]


def _connected(rows, starts, ends, width):
    """Group runs that touch, also at a corner; return an array of indices for each group."""
    # Row and column as one number, by which the runs are sorted.
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
    """Return the smallest rectangle around a core, enlarged to its line, [4, 2]; None if too thin.

    Args:
        points: [n, 2], the corners of the core's pixels.
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
    # The axis nearer to the horizontal is the direction of the line.
    if abs(axes[0, 0]) < abs(axes[1, 0]):
        axes, size = axes[::-1], size[::-1]
    right, down = axes * (size / 2)[:, None]
    right, down = right * np.sign(right[0] or 1), down * np.sign(down[1] or 1)
    return middle + np.array([-right - down, right - down, right + down, down - right])


def _hull(points):
    """Return the convex hull of points, [n, 2] in order (Andrew's monotone chain)."""
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
    """Return the cross product of the two directions from origin; its sign is the turn."""
    return (first[0] - origin[0]) * (second[1] - origin[1]) - (first[1] - origin[1]) * (
        second[0] - origin[0]
    )
