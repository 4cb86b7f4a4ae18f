"""Measurement windows, their stability, and the result of a load, without I/O."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from triton_replay.comparing.latencies import Percentile, percentile, rank
from triton_replay.loading.levels import Level
from triton_replay.loading.statistics import ServerSide

Times = NDArray[np.int64]
AGREEING: Final = 3
"""Number of consecutive windows that must agree."""
PERCENTILES: Final = (50, 90, 95, 99, 99.9)


@dataclass(frozen=True)
class Window:
    """A time window, and the requests that ended in it. Times are nanoseconds.

    `first` and `last` are indexes in the loop's record.
    """

    start: int
    end: int
    first: int
    last: int
    latencies: Times
    """Latencies of successful requests."""
    failures: int

    @property
    def per_second(self) -> float:
        """Successful requests per second."""
        return len(self.latencies) / ((self.end - self.start) / 1e9)

    def latency(self, percent: int | None) -> float:
        """Return a percentile of the latencies in nanoseconds, or their mean for None."""
        return _latency(self.latencies, percent)


@dataclass(frozen=True)
class Stability:
    """Conditions under which windows are stable.

    Args:
        share: Allowed excess of the largest over the smallest value, as a share of the smallest,
            for requests per second and for latency.
        percent: Percentile of the latency to compare; None for the mean.
        threshold: Latency limit in nanoseconds; 0 for none.
        trials: Largest number of windows.
    """

    share: float
    percent: int | None
    threshold: int
    trials: int

    def agree(self, windows: Sequence[Window]) -> bool:
        """Return whether the last windows are stable."""
        last = windows[-AGREEING:]
        if len(last) < AGREEING or not all(len(window.latencies) for window in last):
            return False
        rates = [window.per_second for window in last]
        times = [window.latency(self.percent) for window in last]
        limit = 1 + self.share
        return max(rates) <= min(rates) * limit and max(times) <= min(times) * limit

    def exceed(self, windows: Sequence[Window]) -> bool:
        """Return whether all of the last windows exceed the latency limit."""
        last = windows[-AGREEING:]
        return (
            bool(self.threshold)
            and len(last) == AGREEING
            and all(window.latency(self.percent) > self.threshold for window in last)
        )


@dataclass(frozen=True)
class Streams:
    """Times, in nanoseconds, of requests with several responses; empty if there are none."""

    last: Times
    """Time until the last response of each request."""
    between: Times
    """Times between the responses of all requests."""
    mean_between: NDArray[np.float64]
    """Mean time between the responses of each request; 0 for one response."""

    @classmethod
    def of(cls, starts: Sequence[int], responses: Sequence[array[int]]) -> Streams:
        """Compute the times.

        Args:
            starts: Start of each successful request.
            responses: For each of these requests, the times of its responses, if recorded.
        """
        if not any(len(times) > 1 for times in responses):
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        gaps = [np.diff(times) for times in responses]
        return cls(
            np.array([times[-1] - at for at, times in zip(starts, responses, strict=True)]),
            np.concatenate(gaps),
            np.array([found.mean() if len(found) else 0.0 for found in gaps]),
        )

    def good(self, goals: Mapping[str, float], latencies: Times) -> int:
        """Return the number of successful requests within the limits.

        Args:
            goals: Limits of `first`, `last` and `between` in nanoseconds.
            latencies: Time until the first response of each request.
        """
        measured: dict[str, NDArray[Any]] = {"first": latencies, "last": latencies}
        if len(self.last):
            measured |= {"last": self.last, "between": self.mean_between}
        within = [measured[name] <= goals[name] for name in goals if name in measured]
        return int(np.logical_and.reduce(within).sum()) if within else len(latencies)


@dataclass(frozen=True)
class Measurement:
    """The result of one load. Times are nanoseconds unless their name says otherwise."""

    level: Level
    batch: int
    windows: Sequence[Window]
    """The last windows, from which the result is computed."""
    is_stable: bool
    meets_threshold: bool
    percentiles: tuple[Percentile, ...]
    sending: float
    """Mean time from a request's start, or its due time, until the system accepted its bytes."""
    failures: Mapping[str, int]
    """Failed requests by reason."""
    responses: int
    """Number of responses to all requests; 0 if each request has one response."""
    streams: Streams
    good: int | None
    """Number of requests within the limits of `--goodput`; None without limits."""
    unsent: int = 0
    """Requests of an open loop that were due but not sent at the end."""
    late: int = 0
    """Number of requests that the load generator sent late by its own fault."""
    server: Sequence[ServerSide] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of successful requests."""
        return sum(len(window.latencies) for window in self.windows)

    @property
    def seconds(self) -> float:
        """Duration of all windows."""
        return sum(window.end - window.start for window in self.windows) / 1e9

    @property
    def inferences_per_second(self) -> float:
        """Rows per second."""
        return self.count * self.batch / self.seconds

    @property
    def goodput(self) -> float:
        """Rows per second of requests within the limits of `--goodput`."""
        return (self.good or 0) * self.batch / self.seconds

    @property
    def latencies(self) -> Times:
        """Latencies of all windows."""
        return np.concatenate([window.latencies for window in self.windows])

    def percentile(self, percent: int) -> int:
        """Return the value of a percentile in `percentiles`."""
        return next(found.value for found in self.percentiles if found.percent == percent)

    @property
    def mean(self) -> float:
        """Mean latency."""
        return _latency(self.latencies, None)

    @property
    def deviation(self) -> float:
        """Standard deviation of the latencies."""
        return float(self.latencies.std())


def percentiles_of(latencies: Times, percent: int | None) -> tuple[Percentile, ...]:
    """Return PERCENTILES and `percent`, with 95 % intervals; empty without latencies."""
    ordered = np.sort(latencies).tolist()
    wanted = sorted({*PERCENTILES, *(() if percent is None else (percent,))})
    return tuple(percentile(ordered, one) for one in wanted) if ordered else ()


def _latency(latencies: Times, percent: int | None) -> float:
    """Compute a percentile or the mean without sorting, because the load pauses during the call."""
    if not len(latencies):
        return 0.0
    if percent is None:
        return float(latencies.mean())
    place = rank(len(latencies), percent)
    return float(np.partition(latencies, place)[place])
