"""Histograms from the files that people have: plain numbers, CSV, JSON, perf_analyzer's input data.

Which of these a file is shows in its content, not in its name.
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
"""Distinct sizes that are kept of a file: 256 x 256 are not rounded."""

_SEPARATORS: Final = re.compile(r"[\s,;]+")

COUNT: Final = "count"
"""The column of a CSV file that says how often its line occurs."""


def read_histogram(
    path: Path,
    *,
    axes: Sequence[str] = (),
    unnamed: Sequence[str] = (),
    tensors: Mapping[str, Sequence[str | None]] | None = None,
) -> Histogram:
    """The sizes in the file at `path`.

    Plain numbers: sizes along one axis, separated by spaces, commas or lines; along several axes a
    line for each size. CSV: a header of axis names, a line for each size; a column `count` says how
    often. JSON: what `Histogram.save` wrote; a list of sizes, each a number or a list of numbers;
    or the input data of perf_analyzer (`--input-data`), one size for each request.

    axes: those wanted, in this order; all of the file's if empty. They name the numbers of a list,
    which has no names of its own. unnamed: what a list's numbers are of if no axes are wanted.
    tensors: needed for the input data of perf_analyzer. Input: the axis of each of its dims,
    without the batch dimension, None for a dim that is no axis.

    Raises HistogramFault with place, found and expected; OSError if there is no such file.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a byte order mark
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
            name: _whole(cell.strip(), f"{place}, column '{name}'")
            for name, cell in zip(header, cells, strict=True)
        }
        histogram.add(tuple(row[axis] for axis in axes), row.get(COUNT, 1))
    return histogram


def _from_numbers(lines: Sequence[str], axes: Sequence[str]) -> Histogram:
    histogram = _unnamed(axes)
    for number, line in enumerate(lines, start=1):
        place = f"line {number}"
        sizes = [_whole(word, place) for word in _SEPARATORS.split(line) if word]
        if len(axes) == 1:
            for size in sizes:
                histogram.add((size,))
        elif len(sizes) == len(axes):
            histogram.add(tuple(sizes))
        elif sizes:
            raise ValueError(f"{place}: found {line!r}, expected a size for each of {[*axes]}")
    return histogram


def _unnamed(axes: Sequence[str]) -> Histogram:
    """For numbers without names. Raises ValueError if nobody names them."""
    if not axes:
        raise ValueError("found a list of sizes, expected --axes to name what they are of")
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
        histogram.add(tuple(_whole(size, f"[{index}]") for size in sizes))
    return histogram


def _from_input_data(data: object, tensors: Mapping[str, Sequence[str | None]]) -> Histogram:
    if not tensors:
        raise ValueError(
            "found input data of perf_analyzer, expected --config, or --axes INPUT=... to say "
            "which dims of which input are axes"
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
                        f"{place}.{name}: found {size} along '{axis}', expected {sizes[axis]} as "
                        "in the inputs before it"
                    )
        histogram.add(tuple(sizes[axis] for axis in axes))
    return histogram


def _requests(data: object, place: str = "data") -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each request and its place. Those of one sequence may be in a list of their own."""
    if not isinstance(data, list):
        raise ValueError(f"{place}: found {type(data).__name__}, expected a list of requests")
    for index, entry in enumerate(data):
        inner = f"{place}[{index}]"
        if isinstance(entry, Mapping):
            yield inner, entry
        else:
            yield from _requests(entry, inner)


def _shape(value: object, place: str) -> list[int]:
    """The shape of one input: as written, or else the length of its flat content."""
    content = value
    if isinstance(value, Mapping):
        if "shape" in value:
            shape = value["shape"]
            if not isinstance(shape, list):
                raise ValueError(f"{place}: found shape {shape!r}, expected a list of sizes")
            return [_whole(size, f"{place}: shape") for size in shape]
        content = value.get("content")
    if not isinstance(content, list):
        raise ValueError(f"{place}: found no 'shape', expected one: the content is not a list")
    return [_whole(len(content), place)]


def _whole(value: object, place: str) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or value < 1:
        raise ValueError(f"{place}: found {value!r}, expected a whole number of at least 1")
    return value
