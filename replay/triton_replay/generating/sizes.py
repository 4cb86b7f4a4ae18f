"""Histograms of sizes in the CSV format of `ge-runtime gears`: `tokens,count` and rows."""

from __future__ import annotations

import bisect
import csv
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triton_replay.errors import ReplayError

COUNT: Final = "count"


@dataclass(frozen=True)
class Sizes:
    """A histogram of combinations of sizes. At least one count is above 0."""

    axes: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]

    def each(self) -> Iterator[Mapping[str, int]]:
        """Yield all combinations, as sizes by axis."""
        return (dict(zip(self.axes, row, strict=True)) for row in self.rows)

    def draw(self, chance: random.Random) -> Mapping[str, int]:
        """Return a random combination, as sizes by axis."""
        ends = list(itertools.accumulate(self.counts))
        row = self.rows[bisect.bisect_right(ends, int(chance.random() * ends[-1]))]
        return dict(zip(self.axes, row, strict=True))


NO_SIZES: Final = Sizes((), ((),), (1,))
"""The histogram of requests without variable sizes."""


def read_sizes(path: Path) -> Sizes:
    """Read a CSV file. Raise ReplayError, with the line, if it is invalid."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.reader(file, skipinitialspace=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReplayError(f"{path}: cannot be read: {error}") from error
    header = [name.strip() for name in lines[0]] if lines else []
    axes = tuple(name for name in header if name != COUNT)
    if not axes or len(set(header)) < len(header) or not all(map(str.isidentifier, axes)):
        raise ReplayError(f"{path}: found {','.join(header)!r}, expected a header: tokens,{COUNT}")
    rows, counts = [], []
    for number, cells in enumerate(lines[1:], 2):
        if len(cells) != len(header) or not all(
            cell.strip().isascii() and cell.strip().isdigit() for cell in cells
        ):
            text = f"found {','.join(cells)!r}, expected {len(header)} whole numbers"
            raise ReplayError(f"{path}: line {number}: {text}")
        row = dict(zip(header, map(int, cells), strict=True))
        counts.append(row.pop(COUNT, 1))
        rows.append(tuple(row.values()))
    if not sum(counts):
        raise ReplayError(f"{path}: found no sizes, expected at least one")
    return Sizes(axes, tuple(rows), tuple(counts))
