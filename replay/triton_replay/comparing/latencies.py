"""Percentiles of latencies, with confidence intervals that assume no distribution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Final

_Z: Final = 1.959964
"""Half width of the interval that holds 95 % of a normal distribution, in standard deviations."""
PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True)
class Percentile:
    """A percentile and its 95 % confidence interval, in nanoseconds.

    An end of the interval that too few values determine has the value None.
    """

    percent: int
    value: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Latencies:
    """A summary of the latencies in one capture."""

    count: int
    per_second: float
    percentiles: tuple[Percentile, ...]


def latencies(times: Sequence[int], span: int) -> Latencies:
    """Summarize latencies.

    Args:
        times: Latency of each request, in nanoseconds.
        span: Time from the start of the first request to the end of the last, in nanoseconds.

    Returns:
        The number of requests, the rate, and PERCENTILES; no percentiles without requests.
    """
    ordered = sorted(times)
    rate = len(ordered) / (span / 1e9) if span > 0 else 0.0
    found = tuple(percentile(ordered, percent) for percent in PERCENTILES) if ordered else ()
    return Latencies(len(ordered), rate, found)


def percentile(ordered: Sequence[int], percent: int) -> Percentile:
    """Return a percentile of sorted values with its confidence interval.

    The interval lies between two of the values: the number of values below the percentile of the
    underlying distribution is binomially distributed.

    Args:
        ordered: Values in ascending order, at least one.
        percent: Above 0, at most 100.
    """
    n, p = len(ordered), percent / 100
    middle, spread = n * p, _Z * sqrt(n * p * (1 - p))
    low, high = floor(middle - spread) - 1, ceil(middle + spread)
    return Percentile(
        percent,
        ordered[rank(n, percent)],
        ordered[low] if low >= 0 else None,
        ordered[high] if high < n else None,
    )


def percentile_of(values: Iterable[float], percent: float) -> float:
    """Return a percentile of at least one value, by nearest rank."""
    ordered = sorted(values)
    return ordered[rank(len(ordered), percent)]


def rank(count: int, percent: float) -> int:
    """Return the index of a percentile in `count` sorted values (nearest rank)."""
    return max(0, min(count - 1, ceil(count * percent / 100) - 1))
