"""When requests come: at random around a rate that rises and falls, alone or in bursts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrivals:
    """A Poisson process with a rate that changes, whose events are bursts.

    rate: requests per second, on average over a period.
    burst: requests that come at once, on average: sizes are geometric, so most bursts are small.
    swing: 0 to 1, by which share the rate rises above `rate` and falls below it.
    period: seconds from one peak of the rate to the next; the load begins where it is lowest.
    """

    rate: float
    burst: float = 1.0
    swing: float = 0.0
    period: float = 86_400.0

    def rate_at(self, second: float) -> float:
        """Requests per second then."""
        return self.rate * (1 - self.swing * math.cos(2 * math.pi * second / self.period))

    def times(self, seconds: float, chance: random.Random) -> Iterator[int]:
        """When each request comes, in nanoseconds, never earlier than the one before."""
        # Thinning (Lewis and Shedler): events at the highest rate, kept by what the rate is then.
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
