"""The loads of a run, send times of an open loop, and sequences of requests, without I/O."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triton_replay.errors import ReplayError
from triton_replay.generating import Arrivals

CONCURRENCY: Final = "concurrency"
RATE: Final = "request_rate"

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Shares of the server's capacity. Above the capacity, its queues grow without limit."""


@dataclass(frozen=True)
class Level:
    """One load. `value` is a number of requests in flight or of requests per second."""

    mode: str
    value: float


Levels = Generator[Level, bool, None]
"""Yields the next load; receives whether the previous one met the latency threshold."""


@dataclass(frozen=True)
class Range:
    """Loads from `start` to `end` by `step`; with `end` 0, until one exceeds the threshold."""

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
    """Yield doubling numbers of requests in flight; receive the rate that each one reached.

    Ends when doubling increases the rate by less than a tenth: the capacity is found.
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
    """Yield `rate` times per second with equal gaps, in nanoseconds from `start`."""
    return (start + round(number * 1e9 / rate) for number in itertools.count())


def poisson(rate: float, start: int, chance: random.Random) -> Iterator[int]:
    """Yield the times of a Poisson process of `rate` per second, in nanoseconds from `start`."""
    return (start + at for at in Arrivals(rate).times(float("inf"), chance))


def repeated(gaps: Sequence[int], start: int) -> Iterator[int]:
    """Yield times with these gaps in nanoseconds, repeated without end."""
    return itertools.accumulate(itertools.cycle(gaps), initial=start)


def read_intervals(path: Path) -> list[int]:
    """Read gaps in nanoseconds from a file that has microseconds, one number per line.

    Raises:
        ReplayError: The file cannot be read, has no line, or has an invalid line.
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


# -- sequences


@dataclass(frozen=True)
class SequencePlan:
    """The properties of sequences.

    Args:
        streams: Indexes of the requests of each stream of input data. Each new sequence uses the
            next stream.
        length: Mean length of a sequence; None for the length of its stream.
        variation: Largest deviation from the mean length, as a share of it.
        first: First id.
        end: End of the range of ids, exclusive; None for no end.
    """

    streams: Sequence[Sequence[int]]
    length: int | None
    variation: float
    first: int
    end: int | None

    def check(self, concurrent: int) -> None:
        """Raise ReplayError if there are fewer ids than concurrent sequences."""
        if self.end is not None and self.end - self.first < concurrent:
            raise ReplayError(
                f"--sequence-id-range: found {self.end - self.first} ids, expected at least "
                f"{concurrent}, the number of concurrent sequences"
            )


class Running:
    """The current sequence of a slot; at its end the next one starts."""

    __slots__ = ("_left", "_position", "_source", "_stream", "id")

    def __init__(self, source: Sequences) -> None:
        self._source = source
        self._left = self._position = self.id = 0
        self._stream: Sequence[int] = ()

    def step(self) -> tuple[int, int, bool, bool]:
        """Advance; return the index of the data, the id, and the flags `start` and `end`."""
        start = self._left == 0
        if start:
            self._source.release(self.id)
            self.id, self._stream, self._left = self._source.begin()
            self._position = 0
        index = self._stream[self._position % len(self._stream)]
        self._position += 1
        self._left -= 1
        return index, self.id, start, self._left == 0

    def give_up(self) -> None:
        """Skip the remaining requests, because the server may have ended a failed sequence."""
        self._left = 0

    def shorten(self) -> None:
        """Make the next request the last one."""
        self._left = 1

    @property
    def is_open(self) -> bool:
        """True while the last request of the sequence is still to be sent."""
        return self._left > 0


class Sequences:
    """Assigns ids that no other running sequence has."""

    def __init__(self, plan: SequencePlan, chance: random.Random) -> None:
        self._plan = plan
        self._chance = chance
        self._started = 0
        self._next = plan.first
        self._taken: set[int] = set()

    def begin(self) -> tuple[int, Sequence[int], int]:
        """Return the id, the data and the length of a new sequence.

        Raises:
            ReplayError: All ids are in use.
        """
        plan = self._plan
        plan.check(len(self._taken) + 1)
        while self._next in self._taken or self._next == plan.end:
            self._next = plan.first if self._next == plan.end else self._next + 1
        found = self._next
        self._taken.add(found)
        self._next += 1
        stream = plan.streams[self._started % len(plan.streams)]
        self._started += 1
        if plan.length is None:
            return found, stream, len(stream)
        share = 1 + plan.variation * (2 * self._chance.random() - 1)
        return found, stream, max(1, round(plan.length * share))

    def release(self, sequence: int) -> None:
        """Make an id available again."""
        self._taken.discard(sequence)
