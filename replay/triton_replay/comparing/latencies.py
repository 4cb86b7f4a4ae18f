"""Percentiles of latencies, with confidence intervals that assume no distribution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, sqrt
from typing import Final

from triton_replay.capture.files import Exchange
from triton_replay.wire.bodies import header

_Z: Final = 1.959964
"""Half width of the interval that holds 95 % of a normal distribution, in standard deviations."""
PERCENTILES: Final = (50, 90, 95, 99)
MANY: Final = 2_000
"""Least number of values for p99.9; with fewer, p99.9 is almost the largest value."""


@dataclass(frozen=True)
class Percentile:
    """A percentile and its 95 % confidence interval, in nanoseconds.

    An end of the interval is None if there are too few values to determine it.
    """

    percent: float
    value: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Latencies:
    """A summary of the latencies in one capture."""

    count: int
    per_second: float
    percentiles: tuple[Percentile, ...]
    """Response times: from the time at which a request was due."""
    service: tuple[Percentile, ...] = ()
    """Service times: from the time at which a request was sent."""
    first: tuple[Percentile, ...] = ()
    """Times from the sending of a request until the first of several responses."""
    between: tuple[Percentile, ...] = ()
    """Times between the responses of a stream."""


def latencies(exchanges: Sequence[Exchange]) -> tuple[tuple[int, ...], Latencies]:
    """Return the latencies of answered requests in nanoseconds, and their summary."""
    answered = [(one, one.response) for one in exchanges if one.response is not None]
    times = tuple(max(response.end - one.request.at, 0) for one, response in answered)
    first = min((one.request.at for one, _ in answered), default=0)
    span = max((response.end for _, response in answered), default=0) - first
    streams = [(one.request.end, arrivals_of(one)) for one, _ in answered]
    streams = [(sent, arrivals) for sent, arrivals in streams if len(arrivals) > 1]
    return times, Latencies(
        len(times),
        len(times) / (span / 1e9) if span > 0 else 0.0,
        percentiles(times),
        percentiles([max(response.end - one.request.end, 0) for one, response in answered]),
        percentiles([max(arrivals[0] - sent, 0) for sent, arrivals in streams]),
        percentiles([after - at for _, arrivals in streams for at, after in pairwise(arrivals)]),
    )


def arrivals_of(exchange: Exchange) -> list[int]:
    """Return the arrival times of the responses to one request of a stream, in nanoseconds.

    Returns:
        No times for a gRPC stream with several requests: each response may belong to any of them.
    """
    if exchange.request.protocol == "grpc":
        if any(message.sent for message in exchange.messages):
            return []
        return [message.at for message in exchange.messages]
    response = exchange.response
    if response is None or not header(response.headers, "content-type").startswith(
        "text/event-stream"
    ):
        return []
    return [at for at, _ in response.parts]


def percentiles(times: Iterable[int]) -> tuple[Percentile, ...]:
    """Return PERCENTILES, and p99.9 of at least MANY values; empty without values."""
    ordered = sorted(times)
    wanted = (*PERCENTILES, 99.9) if len(ordered) >= MANY else PERCENTILES
    return tuple(percentile(ordered, percent) for percent in wanted) if ordered else ()


def percentile(ordered: Sequence[int], percent: float) -> Percentile:
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
