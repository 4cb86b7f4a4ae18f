"""Random requests: inputs, whose shapes and values may depend on random sizes; arrival times."""

from __future__ import annotations

import bisect
import csv
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from triton_replay.errors import ReplayError
from triton_replay.wire.answers import DTYPES
from triton_replay.wire.bodies import Headers, tensor_body

_FORM: Final = re.compile(
    r"(?P<name>[^:]+):(?P<datatype>[A-Z0-9]+):(?P<dims>\w+(,\w+)*)"
    r"(=(?P<value>\w+)(\.\.(?P<high>\w+))?)?",
    re.ASCII,
)
EXPECTED: Final = "NAME:DATATYPE:DIM,...[=VALUE or =LOW..HIGH]"


@dataclass(frozen=True)
class InputPlan:
    """The description of an input. A text in `dims`, `low` or `high` is the size of an axis.

    Args:
        name: Name of the input.
        datatype: Triton's name of the datatype.
        dims: The shape.
        low: Smallest value; for BYTES, the smallest length of an element.
        high: Largest value, inclusive; for BYTES, the largest length of an element.
    """

    name: str
    datatype: str
    dims: tuple[int | str, ...]
    low: int | str
    high: int | str

    def make(self, sizes: Mapping[str, int], chance: random.Random) -> tuple[dict[str, Any], bytes]:
        """Return the JSON and the binary data of a random input."""
        shape = [_size(dim, sizes) for dim in self.dims]
        low, high = self._bounds(sizes)
        count = int(np.prod(shape, dtype=np.int64))
        # Random bytes are reproducible by a seed in all versions of Python and NumPy.
        drawn = np.frombuffer(chance.randbytes(4 * count), "<u4").astype(np.uint64)
        if self.datatype == "BYTES":
            lengths = [low + int(one) % (high - low + 1) for one in drawn]
            data = b"".join(n.to_bytes(4, "little") + _text(n, chance) for n in lengths)
        elif self.datatype.startswith("FP"):
            share = drawn / 2**32
            data = (low + share * (high - low)).astype(DTYPES[self.datatype]).tobytes()
        else:
            whole = low + (drawn % np.uint64(high - low + 1)).astype(np.int64)
            data = whole.astype(DTYPES[self.datatype]).tobytes()
        described = {"name": self.name, "datatype": self.datatype, "shape": shape}
        return described | {"parameters": {"binary_data_size": len(data)}}, data

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise ReplayError if the datatype cannot represent the values."""
        dtype = DTYPES.get(self.datatype)
        # Values are drawn as 32 bits, which suffices for tokens and lengths.
        largest = 2**32 - 1
        if dtype is not None and dtype.kind in "iu":
            largest = min(int(np.iinfo(dtype).max), largest)
        _, high = self._bounds(sizes)
        if high > largest:
            raise ReplayError(f"--input: {self.name}: found {high}, expected at most {largest}")

    def _bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        low = _size(self.low, sizes)
        return low, max(_size(self.high, sizes), low)


def parse_input(text: str, axes: Sequence[str]) -> InputPlan:
    """Parse `NAME:DATATYPE:DIMS[=VALUES]`. Raise ReplayError if it is invalid."""
    found = _FORM.fullmatch(text)
    if not found or (found["datatype"] not in DTYPES and found["datatype"] != "BYTES"):
        raise ReplayError(f"--input: found {text!r}, expected {EXPECTED}")
    datatype = found["datatype"]
    low = found["value"] or ("8" if datatype == "BYTES" else "0")
    high = found["high"] or found["value"] or ("8" if datatype == "BYTES" else "1")
    words = [_word(word, text, axes) for word in (*found["dims"].split(","), low, high)]
    *dims, least, most = words
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise ReplayError(f"--input: {text!r}: found {least} as LOW, expected at most {most}")
    return InputPlan(found["name"], datatype, tuple(dims), least, most)


def make_body(
    inputs: Sequence[InputPlan], sizes: Mapping[str, int], chance: random.Random
) -> tuple[Headers, bytes]:
    """Return the header and the body of a random inference, with binary outputs."""
    made = [one.make(sizes, chance) for one in inputs]
    document = {"inputs": [one for one, _ in made], "parameters": {"binary_data_output": True}}
    return tensor_body(document, [data for _, data in made])


def _word(word: str, text: str, axes: Sequence[str]) -> int | str:
    if word.isdigit():
        return int(word)
    if word not in axes:
        known = ", ".join(axes) or "of --sizes"
        raise ReplayError(
            f"--input: {text!r}: found {word!r}, expected a number or an axis: {known}"
        )
    return word


def _size(word: int | str, sizes: Mapping[str, int]) -> int:
    return sizes[word] if isinstance(word, str) else word


def _text(length: int, chance: random.Random) -> bytes:
    return bytes(97 + byte % 26 for byte in chance.randbytes(length))


# -- random arrival times of single requests or bursts, with a varying rate


@dataclass(frozen=True)
class Arrivals:
    """A Poisson process of bursts with a sinusoidal rate.

    Args:
        rate: Mean requests per second over a period.
        burst: Mean requests per burst. Sizes are geometric, so most bursts are small.
        swing: Amplitude of the rate as a share of `rate`, 0 to 1.
        period: Seconds between two peaks of the rate. The load starts at the lowest rate.
    """

    rate: float
    burst: float = 1.0
    swing: float = 0.0
    period: float = 86_400.0

    def rate_at(self, second: float) -> float:
        """Return the requests per second at a time."""
        return self.rate * (1 - self.swing * math.cos(2 * math.pi * second / self.period))

    def times(self, seconds: float, chance: random.Random) -> Iterator[int]:
        """Yield the arrival times in nanoseconds, ascending.

        Args:
            seconds: Duration.
            chance: Source of random numbers.
        """
        # Thinning (Lewis and Shedler): events are drawn at the highest rate, and kept with the
        # probability of the current rate divided by the highest.
        highest = self.rate * (1 + self.swing)
        now = 0.0
        while True:
            now -= math.log(1 - chance.random()) * self.burst / highest
            if now >= seconds:
                return
            if chance.random() * highest > self.rate_at(now):
                continue
            yield round(now * 1e9)
            while chance.random() > 1 / self.burst:
                yield round(now * 1e9)


# -- histograms of sizes in the CSV format of `ge-runtime gears`: `tokens,count` and rows

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
    """Read a CSV file. Raise a ReplayError that names the line if the file is invalid."""
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
