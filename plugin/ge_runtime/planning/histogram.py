"""Histograms of request sizes. They are recorded while serving, and gears are chosen from them.

`histogram_files` reads files of other programs.
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
"""Distinct sizes in a histogram, which take less than 1 MiB."""


LARGEST: Final = 2**31 - 1
"""The largest size along an axis."""


class HistogramFault(RuntimeFault):
    """A file is not a histogram, or a histogram has the wrong axes."""


class Histogram:
    """Counts of sizes. A size is an integer of at least 1 for each axis.

    Memory is bounded. After more than `capacity` distinct sizes, all sizes are rounded up to
    multiples of a step, along the axis with the most distinct sizes. The step doubles until there
    are few enough. Sizes are rounded up so that gears chosen from them hold the original sizes.

    Thread-safe.
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
        """Number of sizes that were added."""
        with self._lock:
            return sum(self._counts.values())

    @property
    def steps(self) -> tuple[int, ...]:
        """For each axis the step that sizes are multiples of."""
        with self._lock:
            return self._steps

    def counts(self) -> dict[tuple[int, ...], int]:
        """Return a copy of the counts: size -> number of times that it was added."""
        return self._snapshot()[0]

    def add(self, sizes: tuple[int, ...], count: int = 1) -> None:
        """Count a size. Takes about a microsecond.

        Args:
            sizes: an integer for each axis, from 1 to LARGEST.
            count: the number of times, at least 1.

        Raises:
            ValueError: an argument is out of range.
        """
        if (
            len(sizes) != len(self.axes)
            or not 1 <= min(sizes) <= max(sizes) <= LARGEST
            or count < 1
        ):
            raise ValueError(
                f"found sizes {sizes} with count {count}, expected a size from 1 to {LARGEST} for "
                f"each of {', '.join(self.axes)}, and a count of at least 1"
            )
        with self._lock:
            if max(self._steps) > 1:
                sizes = _rounded(sizes, self._steps)
            self._counts[sizes] = self._counts.get(sizes, 0) + count
            self._coarsen_to_capacity()

    def merge(self, other: Histogram) -> None:
        """Add all counts of `other`. Raises HistogramFault if the axes differ."""
        if other.axes != self.axes:
            raise HistogramFault(
                f"histogram to merge: found axes {list(other.axes)}, expected {list(self.axes)}"
            )
        # A copy, because holding both locks could deadlock two histograms that merge each other.
        counts, steps = other._snapshot()
        with self._lock:
            self._coarsen(tuple(map(math.lcm, self._steps, steps)))
            for sizes, count in counts.items():
                key = _rounded(sizes, self._steps)
                self._counts[key] = self._counts.get(key, 0) + count
            self._coarsen_to_capacity()

    def project(self, axes: Sequence[str]) -> Histogram:
        """Return the histogram along `axes` only, in their order.

        Without ROWS each size counts once for each of its rows, because that is how many rows of
        an execution have the size. Raises HistogramFault if this histogram lacks one of `axes`.
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
        """Return the distance of the two distributions: 0 if equal, 1 if disjoint.

        This is the Kolmogorov-Smirnov statistic: the largest difference between the shares of
        sizes up to x, over all x, of any axis or of the number of elements (the product of all
        axes, on which padding depends). It does not depend on gears, so it also detects a shift
        within one gear. Its noise is known: for samples of n and m sizes of the same traffic it is
        below 1.36 * sqrt(1/n + 1/m) in 95 % of cases. Total variation is unsuitable: sizes rarely
        repeat exactly, so it is near 1 for any two samples.

        Returns 0 while either histogram is empty. Raises HistogramFault if the axes differ.
        """
        if other.axes != self.axes:
            raise HistogramFault(
                f"histogram to compare: found axes {list(other.axes)}, expected {list(self.axes)}"
            )
        mine, my_steps = self._snapshot()
        theirs, their_steps = other._snapshot()
        if not mine or not theirs:
            return 0.0
        # Both are rounded equally, so that rounding causes no distance.
        steps = tuple(map(math.lcm, my_steps, their_steps))
        left, left_counts = _columns(mine, steps)
        right, right_counts = _columns(theirs, steps)
        return max(
            _kolmogorov_smirnov(a, left_counts, b, right_counts)
            for a, b in zip(left, right, strict=True)
        )

    def save(self, path: Path) -> None:
        """Write to `path` atomically: a reader sees either the old file or the new one.

        Raises OSError if the folder cannot be written.
        """
        counts, steps = self._snapshot()
        entries = [[*sizes, count] for sizes, count in sorted(counts.items())]
        # Unique for each process and thread, because instances of a model may save at the same
        # time. In the same folder, so that the rename is atomic.
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
        """Read a file that `save` wrote. Raises HistogramFault for other content, or OSError."""
        try:
            return cls.of_json(json.loads(path.read_text()), capacity=capacity)
        except ValueError as error:
            raise HistogramFault(f"{path}: not a histogram: {error}") from error

    @classmethod
    def of_json(cls, data: object, *, capacity: int = CAPACITY) -> Histogram:
        """Return the histogram in the parsed content of a file. Raises ValueError."""
        if not isinstance(data, Mapping):
            raise ValueError(f"found {type(data).__name__}, expected an object")
        axes, steps, entries = data.get("axes"), data.get("steps"), data.get("counts")
        if not isinstance(axes, list) or not axes or not all(isinstance(a, str) for a in axes):
            raise ValueError(f"axes: found {axes!r}, expected a list of names")
        histogram = cls(axes, capacity=capacity)
        if steps is not None:
            if not _are_integers(steps, len(axes)):
                raise ValueError(f"steps: found {steps!r}, expected one for each of {axes}")
            histogram._steps = tuple(steps)  # before the counts, because `add` rounds to the steps
        if not isinstance(entries, list):
            raise ValueError(f"counts: found {entries!r}, expected a list")
        for index, entry in enumerate(entries):
            if not _are_integers(entry, len(axes) + 1):
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
            steps[widest] *= 2  # a multiple of the old step, so rounded sizes can be rounded again
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


def _are_integers(values: object, count: int) -> bool:
    """Return whether these are `count` integers of at least 1."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) is int and value >= 1 for value in values)
    )


def _columns(
    counts: Mapping[tuple[int, ...], int], steps: tuple[int, ...]
) -> tuple[list[Array], Array]:
    """Return the sizes along each axis, then the elements, and the counts; all [n] float64."""
    sizes = np.array([_rounded(key, steps) for key in counts], np.float64)
    return [*sizes.T, sizes.prod(axis=1)], np.array(list(counts.values()), np.float64)


def _kolmogorov_smirnov(a: Array, a_counts: Array, b: Array, b_counts: Array) -> float:
    values, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    mine = np.bincount(where[: len(a)], a_counts, len(values)).cumsum() / a_counts.sum()
    theirs = np.bincount(where[len(a) :], b_counts, len(values)).cumsum() / b_counts.sum()
    return float(np.abs(mine - theirs).max())
