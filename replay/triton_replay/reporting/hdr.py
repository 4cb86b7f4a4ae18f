"""Latencies in the percentile format of HdrHistogram, which its plotter and `wrk2` use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import floor, log2
from statistics import fmean, pstdev
from typing import Final

from triton_replay.comparing.latencies import rank

_TICKS: Final = 5
"""Number of lines for each half of the remaining distance to 100 %."""


def hdr_lines(times: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a file with the suffix `.hgrm`.

    Args:
        times: At least one latency, in nanoseconds. The file has milliseconds.
    """
    ordered = sorted(times)
    count = len(ordered)
    yield f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}"
    yield ""
    share = 0.0
    while True:
        value = ordered[rank(count, 100 * share)]
        total = bisect_right(ordered, value)
        if total == count:
            break
        yield f"{value / 1e6:12.3f} {share:2.12f} {total:10d} {1 / (1 - share):14.2f}"
        share += 1 / (_TICKS * 2 ** (floor(log2(1 / (1 - share))) + 1))
    yield f"{ordered[-1] / 1e6:12.3f} {1:2.12f} {count:10d}"
    mean, deviation = fmean(ordered) / 1e6, pstdev(ordered) / 1e6
    yield f"#[Mean    = {mean:12.3f}, StdDeviation   = {deviation:12.3f}]"
    yield f"#[Max     = {ordered[-1] / 1e6:12.3f}, Total count    = {count:12d}]"
    yield f"#[Buckets = {count:12d}, SubBuckets     = {1:12d}]"
