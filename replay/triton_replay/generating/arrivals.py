"""Random arrival times with a rate that varies, alone or in bursts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


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
        # Thinning (Lewis and Shedler): events at the highest rate are kept with the probability
        # of the current rate.
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
