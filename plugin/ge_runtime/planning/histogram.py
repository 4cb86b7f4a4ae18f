"""Histograms of sizes, recorded while serving and saved; gears are chosen from them.

Files of other programs are read by `histogram_files`.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import ROWS, Array

CAPACITY: Final = 4096
"""Distinct sizes that a histogram holds: less than a mebibyte."""


LARGEST: Final = 2**31 - 1
"""The largest size along an axis."""


class HistogramFault(RuntimeFault):
    """A file that holds no histogram, or one of other axes than are wanted."""


class Histogram:
    """Counts of sizes: one whole number for each axis, each at least 1.

    Memory is bounded. When more than `capacity` distinct sizes have been seen, all are rounded up
    to multiples of a step, along the axis with the most distinct sizes; the step doubles until
    they are few enough. Rounded up, so that gears chosen from them hold what was seen.

    Safe from any thread.
    """

    def __init__(self, axes: Iterable[str], *, capacity: int = CAPACITY) -> None:
        self.axes: Final = tuple(axes)
        self._capacity: Final = capacity
        self._lock: Final = threading.Lock()
        self._counts: dict[tuple[int, ...], int] = {}
        self._steps = (1,) * len(self.axes)

    def __repr__(self) -> str:
        counts, steps = self._snapshot()
        return (
            f"<Histogram of {' x '.join(self.axes)}: {sum(counts.values())} sizes, "
            f"{len(counts)} distinct, in steps of {' x '.join(map(str, steps))}>"
        )

    @property
    def total(self) -> int:
        """How many sizes were added."""
        with self._lock:
            return sum(self._counts.values())

    @property
    def steps(self) -> tuple[int, ...]:
        """What sizes are multiples of, for each axis."""
        with self._lock:
            return self._steps

    def counts(self) -> dict[tuple[int, ...], int]:
        """How often each size was added, as of now."""
        return self._snapshot()[0]

    def add(self, sizes: tuple[int, ...], count: int = 1) -> None:
        """Count `sizes`, one for each axis, `count` times. About a microsecond.

        Raises ValueError if they are not sizes of these axes, or `count` is below 1.
        """
        if (
            len(sizes) != len(self.axes)
            or not 1 <= min(sizes) <= max(sizes) <= LARGEST
            or count < 1
        ):
            raise ValueError(
                f"found sizes {sizes} {count} times, expected a size from 1 to {LARGEST} for each "
                f"of {', '.join(self.axes)}, at least once"
            )
        with self._lock:
            if max(self._steps) > 1:
                sizes = _rounded(sizes, self._steps)
            self._counts[sizes] = self._counts.get(sizes, 0) + count
            self._coarsen_to_capacity()

    def merge(self, other: Histogram) -> None:
        """Count all that `other` counted as well. Raises HistogramFault if its axes differ."""
        if other.axes != self.axes:
            raise HistogramFault(
                f"histogram to merge: found axes {list(other.axes)}, expected {list(self.axes)}"
            )
        # A copy first: holding both locks, two histograms merged into each other would dead-lock.
        counts, steps = other._snapshot()
        with self._lock:
            self._coarsen(tuple(map(math.lcm, self._steps, steps)))
            for sizes, count in counts.items():
                key = _rounded(sizes, self._steps)
                self._counts[key] = self._counts.get(key, 0) + count
            self._coarsen_to_capacity()

    def project(self, axes: Sequence[str]) -> Histogram:
        """The same counts along `axes` only, in their order.

        Where ROWS is left out each size counts once for each of its rows: that is how often an
        execution meets it. Raises HistogramFault if this histogram lacks one of `axes`.
        """
        for axis in axes:
            if axis not in self.axes:
                known = ", ".join(self.axes)
                raise HistogramFault(f"histogram: found no axis '{axis}', expected one of: {known}")
        counts, steps = self._snapshot()
        kept = [self.axes.index(axis) for axis in axes]
        rows = self.axes.index(ROWS) if ROWS in self.axes and ROWS not in axes else None
        projected = Histogram(axes, capacity=self._capacity)
        projected._steps = tuple(steps[axis] for axis in kept)
        for sizes, count in counts.items():
            weight = 1 if rows is None else sizes[rows]
            projected.add(tuple(sizes[axis] for axis in kept), count * weight)
        return projected

    def drift(self, other: Histogram) -> float:
        """How far the two distributions of sizes are apart: 0 for the same, 1 for disjoint ones.

        The Kolmogorov-Smirnov statistic: the largest difference between the shares of sizes up to
        x, over all x, of any axis or of the number of elements (the product of all axes, on which
        padding depends). It needs no gears, so it sees a shift within one gear's reach too, and
        its noise is known: of two samples of n and m sizes from the same traffic 95 % lie below
        1.36 * sqrt(1/n + 1/m). Total variation over sizes, which hardly ever repeat exactly, is
        near 1 for any two samples.

        0 while either is empty. Raises HistogramFault if the axes differ.
        """
        if other.axes != self.axes:
            raise HistogramFault(
                f"histogram to compare: found axes {list(other.axes)}, expected {list(self.axes)}"
            )
        mine, my_steps = self._snapshot()
        theirs, their_steps = other._snapshot()
        if not mine or not theirs:
            return 0.0
        # What one of them has rounded counts as equal to what the other has not.
        steps = tuple(map(math.lcm, my_steps, their_steps))
        left, left_counts = _columns(mine, steps)
        right, right_counts = _columns(theirs, steps)
        return max(
            _kolmogorov_smirnov(a, left_counts, b, right_counts)
            for a, b in zip(left, right, strict=True)
        )

    def save(self, path: Path) -> None:
        """Write to `path` whole or not at all: a reader finds the old file or the new one.

        Raises OSError if the folder cannot be written.
        """
        counts, steps = self._snapshot()
        entries = [[*sizes, count] for sizes, count in sorted(counts.items())]
        # A name for each process and thread: instances of a model may save at the same time. In
        # the same folder, so that the rename replaces the file at once.
        scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            scratch.write_text(
                json.dumps({"axes": self.axes, "steps": steps, "counts": entries}) + "\n"
            )
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, *, capacity: int = CAPACITY) -> Histogram:
        """What `save` wrote. Raises HistogramFault if it is something else, OSError if nothing."""
        try:
            return cls.of_json(json.loads(path.read_text()), capacity=capacity)
        except ValueError as error:
            raise HistogramFault(f"{path}: found no histogram: {error}") from error

    @classmethod
    def of_json(cls, data: object, *, capacity: int = CAPACITY) -> Histogram:
        """The histogram in `data`, the parsed content of a file. Raises ValueError if none."""
        if not isinstance(data, Mapping):
            raise ValueError(f"found {type(data).__name__}, expected an object")
        axes, steps, entries = data.get("axes"), data.get("steps"), data.get("counts")
        if not isinstance(axes, list) or not axes or not all(isinstance(a, str) for a in axes):
            raise ValueError(f"axes: found {axes!r}, expected a list of names")
        histogram = cls(axes, capacity=capacity)
        if steps is not None:
            if not _are_whole(steps, len(axes)):
                raise ValueError(f"steps: found {steps!r}, expected one for each of {axes}")
            histogram._steps = tuple(steps)  # before the counts, which `add` rounds to them
        if not isinstance(entries, list):
            raise ValueError(f"counts: found {entries!r}, expected a list")
        for index, entry in enumerate(entries):
            if not _are_whole(entry, len(axes) + 1):
                raise ValueError(
                    f"counts[{index}]: found {entry!r}, expected the sizes of {axes} and a count"
                )
            histogram.add(tuple(entry[:-1]), entry[-1])
        return histogram

    def _snapshot(self) -> tuple[dict[tuple[int, ...], int], tuple[int, ...]]:
        with self._lock:
            return dict(self._counts), self._steps

    def _coarsen_to_capacity(self) -> None:
        while len(self._counts) > self._capacity:
            distinct = [len(set(column)) for column in zip(*self._counts, strict=True)]
            widest = distinct.index(max(distinct))
            steps = list(self._steps)
            steps[widest] *= 2  # a multiple of the step before: what was rounded needs no original
            self._coarsen(tuple(steps))

    def _coarsen(self, steps: tuple[int, ...]) -> None:
        if steps != self._steps:
            counts: dict[tuple[int, ...], int] = {}
            for sizes, count in self._counts.items():
                key = _rounded(sizes, steps)
                counts[key] = counts.get(key, 0) + count
            self._counts, self._steps = counts, steps


def _rounded(sizes: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-size // step) * step for size, step in zip(sizes, steps, strict=True))


def _are_whole(values: object, count: int) -> bool:
    """Whether these are `count` whole numbers of at least 1."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) is int and value >= 1 for value in values)
    )


def _columns(
    counts: Mapping[tuple[int, ...], int], steps: tuple[int, ...]
) -> tuple[list[Array], Array]:
    """Sizes along each axis, then elements, each [n] float64; and how often, [n] float64."""
    sizes = np.array([_rounded(key, steps) for key in counts], np.float64)
    return [*sizes.T, sizes.prod(axis=1)], np.array(list(counts.values()), np.float64)


def _kolmogorov_smirnov(a: Array, a_counts: Array, b: Array, b_counts: Array) -> float:
    values, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    mine = np.bincount(where[: len(a)], a_counts, len(values)).cumsum() / a_counts.sum()
    theirs = np.bincount(where[len(a) :], b_counts, len(values)).cumsum() / b_counts.sum()
    return float(np.abs(mine - theirs).max())
