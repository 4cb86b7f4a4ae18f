"""Read histograms from files: plain numbers, CSV, JSON, and input data of perf_analyzer.

The format is detected from the content.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ge_runtime.planning.histogram import Histogram, HistogramFault

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
        axes: axes of the result, in this order; () for all axes of the file. They also name the
            numbers of a file without names.
        unnamed: axes of a file without names if `axes` is empty.
        tensors: for input data of perf_analyzer: input -> axis of each dim, without the batch
            dimension; None for a dim that is not an axis.

    Raises:
        HistogramFault: malformed content; the text names the place.
        OSError: the file cannot be read.
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
    except (ValueError, HistogramFault) as error:
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
    """Return a histogram for numbers without names. Raises ValueError without axes."""
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
