"""Windows of time in which requests are counted, and whether several of them agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from triton_replay.comparing.latencies import Percentile, percentile, rank
from triton_replay.loading.levels import Level
from triton_replay.loading.statistics import ServerSide

Times = NDArray[np.int64]
AGREEING: Final = 3
"""Windows that have to agree."""
PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True)
class Window:
    """Times in nanoseconds, and which requests ended in it."""

    start: int
    end: int
    first: int
    last: int
    latencies: Times
    """Of those that were answered well."""
    failures: int

    @property
    def per_second(self) -> float:
        """Requests answered well."""
        return len(self.latencies) / ((self.end - self.start) / 1e9)

    def latency(self, percent: int | None) -> float:
        """The percentile in nanoseconds, or the mean."""
        return _latency(self.latencies, percent)


@dataclass(frozen=True)
class Stability:
    """When windows agree.

    share: by which the largest may be above the smallest, in requests per second and latency.
    percent: the percentile that is looked at; None for the mean.
    threshold: nanoseconds of latency that a load has to meet; 0 for any.
    trials: windows at most.
    """

    share: float
    percent: int | None
    threshold: int
    trials: int

    def agree(self, windows: Sequence[Window]) -> bool:
        """Whether the last windows do."""
        last = windows[-AGREEING:]
        if len(last) < AGREEING or not all(len(window.latencies) for window in last):
            return False
        rates = [window.per_second for window in last]
        times = [window.latency(self.percent) for window in last]
        limit = 1 + self.share
        return max(rates) <= min(rates) * limit and max(times) <= min(times) * limit

    def exceed(self, windows: Sequence[Window]) -> bool:
        """Whether the last windows are all slower than the threshold."""
        last = windows[-AGREEING:]
        return (
            bool(self.threshold)
            and len(last) == AGREEING
            and all(window.latency(self.percent) > self.threshold for window in last)
        )


@dataclass(frozen=True)
class Measurement:
    """What was measured of one load. Times are nanoseconds, unless their name says otherwise."""

    level: Level
    batch: int
    windows: Sequence[Window]
    """Those that count: the last ones."""
    is_stable: bool
    meets_threshold: bool
    percentiles: tuple[Percentile, ...]
    sending: float
    """Until the system had a request, on average: of an open loop, from when it was due."""
    failures: Mapping[str, int]
    """By reason."""
    responses: int
    """Of all requests, where they have many."""
    unsent: int = 0
    """Of an open loop what was due and waited still when it was over."""
    late: int = 0
    """Requests that the load itself sent too late."""
    server: Sequence[ServerSide] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Requests answered well."""
        return sum(len(window.latencies) for window in self.windows)

    @property
    def seconds(self) -> float:
        """The time of all windows."""
        return sum(window.end - window.start for window in self.windows) / 1e9

    @property
    def inferences_per_second(self) -> float:
        """Rows, where requests are batches."""
        return self.count * self.batch / self.seconds

    @property
    def latencies(self) -> Times:
        """Of all windows."""
        return np.concatenate([window.latencies for window in self.windows])

    @property
    def mean(self) -> float:
        """Of the latencies."""
        return _latency(self.latencies, None)

    @property
    def deviation(self) -> float:
        """The standard deviation of the latencies."""
        return float(self.latencies.std())


def percentiles_of(latencies: Times, percent: int | None) -> tuple[Percentile, ...]:
    """The usual ones and that one, with their 95 % intervals."""
    ordered = np.sort(latencies).tolist()
    wanted = sorted({*PERCENTILES, *(() if percent is None else (percent,))})
    return tuple(percentile(ordered, one) for one in wanted) if ordered else ()


def _latency(latencies: Times, percent: int | None) -> float:
    """While a load goes on, so it must not take long: nothing is sorted."""
    if not len(latencies):
        return 0.0
    if percent is None:
        return float(latencies.mean())
    place = rank(len(latencies), percent)
    return float(np.partition(latencies, place)[place])
