"""The loads of a run, and the times at which an open loop sends its requests. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triton_replay.errors import ReplayError
from triton_replay.generating.arrivals import Arrivals

CONCURRENCY: Final = "concurrency"
RATE: Final = "request_rate"

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Shares of the server's capacity. Above them its queues grow without limit."""


@dataclass(frozen=True)
class Level:
    """One load. `value` is requests in flight, or requests per second."""

    mode: str
    value: float


Levels = Generator[Level, bool, None]
"""Yields the next load; receives whether the previous one met the latency threshold."""


@dataclass(frozen=True)
class Range:
    """Loads from `start` to `end` by `step`; `end` 0 means until the threshold is exceeded."""

    mode: str
    start: float
    end: float
    step: float

    def linear(self) -> Levels:
        """Yield the loads in order, until one exceeds the threshold."""
        value, met = self.start, True
        # Sums of float steps may slightly exceed the end.
        while met and (not self.end or value <= self.end * (1 + 1e-9)):
            met = yield Level(self.mode, value)
            value += self.step

    def binary(self) -> Levels:
        """Search for the largest load that meets the threshold, by bisection."""
        met = yield Level(self.mode, self.start)
        if not met:
            return
        met = yield Level(self.mode, self.end)
        if met:
            return
        low, high = self.start, self.end
        while high - low > self.step:
            middle = (low + high) / 2
            if self.mode == CONCURRENCY:
                middle = float(int(middle))
            met = yield Level(self.mode, middle)
            low, high = (middle, high) if met else (low, middle)


def parse_range(text: str, option: str, mode: str) -> Range:
    """Parse `START:END:STEP`; END defaults to START, STEP to 1.

    Raises:
        ReplayError: The text is invalid; the error names `option`.
    """
    parts = text.split(":")
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    whole = mode == RATE or all(value % 1 == 0 for value in values)
    if not 1 <= len(values) <= 3 or not whole or not all(0 <= one < 1e9 for one in values):
        kind = "numbers" if mode == RATE else "whole numbers"
        raise ReplayError(f"{option}: found {text!r}, expected START:END:STEP of {kind}")
    start = values[0]
    end = values[1] if len(values) > 1 else start
    step = values[2] if len(values) > 2 else 1.0
    if not start or not step:
        raise ReplayError(f"{option}: found {text!r}, expected a start and a step above 0")
    if end and end < start:
        raise ReplayError(f"{option}: found {text!r}, expected an end of at least the start, or 0")
    return Range(mode, start, end, step)


def doubling(most: int) -> Generator[int, float, None]:
    """Yield numbers of requests in flight that find the capacity; receive the rate of each.

    Ends when twice the number increases the rate by less than a tenth.
    """
    best, in_flight = 0.0, 1
    while in_flight <= most:
        rate = yield in_flight
        if rate < best * 1.1:
            return
        best, in_flight = max(rate, best), in_flight * 2


def shares_of(capacity: float) -> Levels:
    """Yield request rates up to nine tenths of the capacity."""
    for share in SHARES:
        rate = capacity * share
        yield Level(RATE, float(f"{rate:.2g}") if rate >= 1 else rate)


# -- arrival times


def evenly(rate: float, start: int) -> Iterator[int]:
    """Yield times with equal gaps, `rate` per second, in nanoseconds from `start`."""
    return (start + round(number * 1e9 / rate) for number in itertools.count())


def poisson(rate: float, start: int, chance: random.Random) -> Iterator[int]:
    """Yield the times of a Poisson process, `rate` per second, in nanoseconds from `start`."""
    return (start + at for at in Arrivals(rate).times(float("inf"), chance))


def repeated(gaps: Sequence[int], start: int) -> Iterator[int]:
    """Yield times with these gaps in nanoseconds, repeated without end."""
    return itertools.accumulate(itertools.cycle(gaps), initial=start)


def read_intervals(path: Path) -> list[int]:
    """Read gaps from a file with microseconds, one per line; return nanoseconds.

    Raises:
        ReplayError: The file cannot be read, has no line, or an invalid one.
    """
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"--request-intervals {path}: cannot be read: {error}") from error
    gaps = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            gap = round(float(line) * 1000)
        except (ValueError, OverflowError):
            gap = 0
        if gap <= 0:
            raise ReplayError(
                f"{path}:{number}: found {line.strip()!r}, expected microseconds above 0"
            )
        gaps.append(gap)
    if not gaps:
        raise ReplayError(f"{path}: found no line, expected microseconds, one per line")
    return gaps
