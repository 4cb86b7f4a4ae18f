"""Which loads are tried one after the other: ranges, searches, shares of a capacity. Pure."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from triton_replay.errors import ReplayError

CONCURRENCY: Final = "concurrency"
RATE: Final = "request_rate"

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Of what a server can do at most; at more than these its queues grow without end."""


@dataclass(frozen=True)
class Level:
    """One load. value: requests in flight, or per second."""

    mode: str
    value: float


Levels = Generator[Level, bool, None]
"""The next load; is sent whether the load before met the threshold of latency."""


@dataclass(frozen=True)
class Range:
    """From `start` on, to `end` by `step`; end 0: until the threshold of latency is not met."""

    mode: str
    start: float
    end: float
    step: float

    def linear(self) -> Levels:
        """One after the other, until one does not meet the threshold."""
        value, met = self.start, True
        # Steps of floats add up to a little more than they should.
        while met and (not self.end or value <= self.end * (1 + 1e-9)):
            met = yield Level(self.mode, value)
            value += self.step

    def binary(self) -> Levels:
        """Halves the range until it is smaller than the step: the largest that meets it."""
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
    """Read `start:end:step`. Raises ReplayError."""
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
    """How many requests in flight to try to see what a server can do; is sent what came of each.

    Ends when twice as many give hardly more.
    """
    best, in_flight = 0.0, 1
    while in_flight <= most:
        rate = yield in_flight
        if rate < best * 1.1:
            return
        best, in_flight = max(rate, best), in_flight * 2


def shares_of(capacity: float) -> Levels:
    """Rates up to nearly what the server can do."""
    for share in SHARES:
        rate = capacity * share
        yield Level(RATE, float(f"{rate:.2g}") if rate >= 1 else rate)
