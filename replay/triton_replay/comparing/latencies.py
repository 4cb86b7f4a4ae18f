"""Latencies: percentiles with confidence intervals that assume no distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Final

_Z: Final = 1.959964  # of a normal distribution 95 % lie so many deviations from its middle
PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True)
class Percentile:
    """A percentile and its 95 % interval, in nanoseconds; None where there are too few."""

    percent: int
    value: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Latencies:
    """Of one capture: how many requests, per second, and how long they took."""

    count: int
    per_second: float
    percentiles: tuple[Percentile, ...]


def latencies(times: Sequence[int], span: int) -> Latencies:
    """times: nanoseconds of each request; span: nanoseconds from the first to the last."""
    ordered = sorted(times)
    rate = len(ordered) / (span / 1e9) if span > 0 else 0.0
    found = tuple(percentile(ordered, percent) for percent in PERCENTILES) if ordered else ()
    return Latencies(len(ordered), rate, found)


def percentile(ordered: Sequence[int], percent: int) -> Percentile:
    """Of some values in their order.

    The interval is between two of the measured values: how many of n are below is binomial.
    """
    n, p = len(ordered), percent / 100
    value = ordered[min(n - 1, ceil(n * p) - 1)]
    middle, spread = n * p, _Z * sqrt(n * p * (1 - p))
    low, high = floor(middle - spread) - 1, ceil(middle + spread)
    return Percentile(
        percent,
        value,
        ordered[low] if low >= 0 else None,
        ordered[high] if high < n else None,
    )


def verdict(a: Percentile, b: Percentile) -> str:
    """`slower` or `quicker` where the intervals are apart, else nothing."""
    if b.low is not None and a.high is not None and b.low > a.high:
        return "slower"
    if a.low is not None and b.high is not None and b.high < a.low:
        return "quicker"
    return ""
