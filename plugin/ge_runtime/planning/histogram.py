"""Histograms of request sizes. They are recorded while serving, and gears are chosen from them.

Files of other programs can be read as well: plain numbers, CSV, JSON, and input data of
perf_analyzer. The format is detected from the content.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import ROWS, Array

CAPACITY: Final = 4096
"""Largest number of distinct sizes in a histogram; they take less than 1 MiB."""


LARGEST: Final = 2**31 - 1
"""The largest size along an axis."""


class HistogramFault(RuntimeFault):
    """A file is not a histogram, or a histogram has the wrong axes."""


class Histogram:
    """Counts of sizes. A size is an integer of at least 1 for each axis.

    Memory is bounded. After more than `capacity` distinct sizes, all sizes are rounded up to
    multiples of a step, along the axis with the most distinct sizes. The step doubles until at most
    `capacity` distinct sizes remain. Gears that are chosen from rounded sizes hold the original
    sizes.

    Thread-safe.
    """

    def __init__(self, axes: Iterable[str], *, capacity: int = CAPACITY) -> None:
        self.axes: Final = tuple(axes)
        self._capacity: Final = capacity
        self._lock: Final = threading.Lock()
        self._counts: dict[tuple[int, ...], int] = {}
        self._steps = (1,) * len(self.axes)

    @property
    def total(self) -> int:
        """Number of sizes that were added."""
        with self._lock:
            return sum(self._counts.values())

    @property
    def steps(self) -> tuple[int, ...]:
        """The step of each axis: all sizes along the axis are multiples of the step."""
        with self._lock:
            return self._steps

    def counts(self) -> dict[tuple[int, ...], int]:
        """Return a copy of the counts: how often each size was added."""
        return self._snapshot()[0]

    def add(self, sizes: tuple[int, ...], count: int = 1) -> None:
        """Count a size: for each axis, an integer from 1 to LARGEST. Takes about a microsecond.

        Raises ValueError if an argument is out of range.
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

        If ROWS is dropped, a request of n rows counts n times: each of its rows has the size.
        Raises HistogramFault if this histogram lacks one of `axes`.
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

        This is the Kolmogorov-Smirnov statistic: the largest difference, over all x, between the
        shares of sizes up to x. It is computed for each axis and for the number of elements (the
        product of all axes, on which padding depends), and the maximum is returned. It does not
        depend on gears, so it also detects a shift within one gear. Its noise is known: for samples
        of n and m sizes of the same traffic it is below 1.36 * sqrt(1/n + 1/m) in 95 % of cases.
        Total variation is unsuitable: sizes rarely repeat exactly, so it is near 1 for any two
        samples.

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
        # The name is unique for each process and thread, because instances of a model may save at
        # the same time. The folder is the same, so that the rename is atomic.
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
        except (ValueError, RecursionError) as error:
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


FILE_CAPACITY: Final = 65536
"""Distinct sizes of a file before they are rounded: 256 x 256."""

_SEPARATORS: Final = re.compile(r"[\s,;]+")

COUNT: Final = "count"
"""The column of a CSV file with the number of requests of a size."""


def read_histogram(
    path: Path,
    *,
    axes: Sequence[str] = (),
    unnamed: Sequence[str] = (),
    tensors: Mapping[str, Sequence[str | None]] | None = None,
) -> Histogram:
    """Read the sizes in a file.

    Formats:
        Plain numbers: sizes along one axis, separated by spaces, commas or lines. With several
            axes, a line for each size.
        CSV: a header of axis names, then a line for each size. The optional column `count` has the
            number of requests.
        JSON: a file that `Histogram.save` wrote; or a list of sizes, each a number or a list of
            numbers; or the input data of perf_analyzer (`--input-data`), a size for each request.

    Args:
        path: the file.
        axes: axes of the result, in this order; () for all axes of the file. If the file has no
            axis names, these are its axes.
        unnamed: axes of a file without axis names, used if `axes` is empty.
        tensors: for input data of perf_analyzer: for each input, the axis of each dim without the
            batch dimension; None for a dim that is not an axis.

    Raises:
        HistogramFault: malformed content; the text names the place.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
        first = text.lstrip()[:1]
        if first in ("{", "["):
            histogram = _from_json(json.loads(text), axes or unnamed, tensors or {})
        elif first.isdecimal():  # names of axes begin with letters
            histogram = _from_numbers(text.splitlines(), axes or unnamed)
        else:
            histogram = _from_csv(text.splitlines())
        if not histogram.total:
            raise ValueError("found no sizes, expected at least one")
        return histogram.project(axes) if axes else histogram
    except (ValueError, RecursionError, HistogramFault) as error:
        raise HistogramFault(f"{path}: {error}") from error


def _from_csv(lines: Sequence[str]) -> Histogram:
    reader = csv.reader(lines, skipinitialspace=True)
    header = [name.strip() for name in next(reader, [])]
    axes = [name for name in header if name != COUNT]
    if not axes or len(set(header)) < len(header) or not all(map(str.isidentifier, axes)):
        raise ValueError(
            f"line 1: found {','.join(header)!r}, expected a header of axis names such as "
            f"'tokens,{COUNT}'"
        )
    histogram = Histogram(axes, capacity=FILE_CAPACITY)
    for cells in reader:
        if not cells:
            continue
        place = f"line {reader.line_num}"
        if len(cells) != len(header):
            raise ValueError(f"{place}: found {len(cells)} values, expected {len(header)}")
        row = {
            name: _integer(cell.strip(), f"{place}, column '{name}'")
            for name, cell in zip(header, cells, strict=True)
        }
        histogram.add(tuple(row[axis] for axis in axes), row.get(COUNT, 1))
    return histogram


def _from_numbers(lines: Sequence[str], axes: Sequence[str]) -> Histogram:
    histogram = _unnamed(axes)
    for number, line in enumerate(lines, start=1):
        place = f"line {number}"
        sizes = [_integer(word, place) for word in _SEPARATORS.split(line) if word]
        if len(axes) == 1:
            for size in sizes:
                histogram.add((size,))
        elif len(sizes) == len(axes):
            histogram.add(tuple(sizes))
        elif sizes:
            raise ValueError(f"{place}: found {line!r}, expected a size for each of {[*axes]}")
    return histogram


def _unnamed(axes: Sequence[str]) -> Histogram:
    """Return a histogram for a file without axis names. Raises ValueError without `axes`."""
    if not axes:
        raise ValueError("found sizes without axis names. Use --axes to name them")
    return Histogram(axes, capacity=FILE_CAPACITY)


def _from_json(
    data: object, axes: Sequence[str], tensors: Mapping[str, Sequence[str | None]]
) -> Histogram:
    if isinstance(data, list):
        return _from_list(data, axes)
    if isinstance(data, Mapping) and "data" in data:
        return _from_input_data(data["data"], tensors)
    return Histogram.of_json(data, capacity=FILE_CAPACITY)


def _from_list(entries: Sequence[object], axes: Sequence[str]) -> Histogram:
    histogram = _unnamed(axes)
    for index, entry in enumerate(entries):
        sizes = entry if isinstance(entry, list) else [entry]
        if len(sizes) != len(axes):
            raise ValueError(f"[{index}]: found {entry!r}, expected a size for each of {[*axes]}")
        histogram.add(tuple(_integer(size, f"[{index}]") for size in sizes))
    return histogram


def _from_input_data(data: object, tensors: Mapping[str, Sequence[str | None]]) -> Histogram:
    if not tensors:
        raise ValueError(
            "found input data of perf_analyzer. Use --config, or --axes INPUT=... to name the axes "
            "of each input"
        )
    named = [axis for dims in tensors.values() for axis in dims if axis is not None]
    axes = tuple(dict.fromkeys(named))
    histogram = Histogram(axes, capacity=FILE_CAPACITY)
    for place, request in _requests(data):
        sizes: dict[str, int] = {}
        for name, dims in tensors.items():
            if name not in request:
                known = ", ".join(request)
                raise ValueError(f"{place}: found no input '{name}', expected one of: {known}")
            shape = _shape(request[name], f"{place}.{name}")
            if len(shape) != len(dims):
                raise ValueError(f"{place}.{name}: found shape {shape}, expected {len(dims)} dims")
            for axis, size in zip(dims, shape, strict=True):
                if axis is not None and sizes.setdefault(axis, size) != size:
                    raise ValueError(
                        f"{place}.{name}: found {size} along '{axis}', expected {sizes[axis]}, as "
                        "in the earlier inputs"
                    )
        histogram.add(tuple(sizes[axis] for axis in axes))
    return histogram


def _requests(data: object, place: str = "data") -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield each request with its place. Requests of a sequence may be in a nested list."""
    if not isinstance(data, list):
        raise ValueError(f"{place}: found {type(data).__name__}, expected a list of requests")
    for index, entry in enumerate(data):
        inner = f"{place}[{index}]"
        if isinstance(entry, Mapping):
            yield inner, entry
        else:
            yield from _requests(entry, inner)


def _shape(value: object, place: str) -> list[int]:
    """Return the shape of an input: its 'shape', or the length of its content."""
    content = value
    if isinstance(value, Mapping):
        if "shape" in value:
            shape = value["shape"]
            if not isinstance(shape, list):
                raise ValueError(f"{place}: found shape {shape!r}, expected a list of sizes")
            return [_integer(size, f"{place}: shape") for size in shape]
        content = value.get("content")
    if not isinstance(content, list):
        raise ValueError(
            f"{place}: found no 'shape', expected one, because the content is not a list"
        )
    return [_integer(len(content), place)]


def _integer(value: object, place: str) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or value < 1:
        raise ValueError(f"{place}: found {value!r}, expected a whole number of at least 1")
    return value
