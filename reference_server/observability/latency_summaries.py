"""Latencies of a model: summaries, and the histogram of durations to the first response.

Summaries estimate the quantiles of a stream in little memory. The algorithm is that of Cormode,
Korn, Muthukrishnan and Srivastava, "Effective computation of biased quantiles over data streams"
(2005), for quantiles that are known in advance. prometheus-cpp, which Triton uses, implements the
same algorithm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reference_server.core.ports import Clock
from reference_server.core.request import InferRequest, InferResponse, ResponseSink, Timing
from reference_server.core.telemetry import Distribution, FamilyHead, MetricKind, Quantiles
from reference_server.observability.metric_registry import Histogram
from reference_server.options import Quantile

_NS_PER_US = 1000
#: The number of values that a sketch buffers before it merges them.
_BUFFERED = 512
# The last 60 s in five windows: the defaults of prometheus-cpp's Summary
# (core/include/prometheus/summary.h). Triton sets only the quantiles
# (src/metric_model_reporter.cc of its core).
_WINDOWS = 5
_WINDOW_NS = 12 * 1_000_000_000


def _summary(name: str, description: str) -> FamilyHead:
    return FamilyHead(name, description, MetricKind.SUMMARY)


_REQUEST = _summary(
    "nv_inference_request_summary_us",
    "Summary of inference request duration in microseconds (includes cached requests)",
)
_QUEUE = _summary(
    "nv_inference_queue_summary_us",
    "Summary of inference queuing duration in microseconds (includes cached requests)",
)
_INPUT = _summary(
    "nv_inference_compute_input_summary_us",
    "Cumulative compute input duration in microseconds (does not include cached requests)",
)
_INFER = _summary(
    "nv_inference_compute_infer_summary_us",
    "Cumulative compute inference duration in microseconds (does not include cached requests)",
)
_OUTPUT = _summary(
    "nv_inference_compute_output_summary_us",
    "Cumulative inference compute output duration in microseconds "
    "(does not include cached requests)",
)
_HIT = _summary(
    "nv_cache_hit_summary_per_model",
    "Summary of cache hit counts/durations per model, in microseconds.",
)
_MISS = _summary(
    "nv_cache_miss_summary_per_model",
    "Summary of cache miss counts/durations per model, in microseconds.",
)

#: In the order of Triton's page.
LATENCY_FAMILIES = (_REQUEST, _QUEUE, _INPUT, _INFER, _OUTPUT, _HIT, _MISS)


class LatencySummaries:
    """The summaries of one model version. Not thread-safe. Durations are in nanoseconds.

    With the response cache (`cached`) there are summaries of hits and misses and, as in Triton, no
    summaries of whole requests.
    """

    def __init__(self, quantiles: Sequence[Quantile], clock: Clock, *, cached: bool) -> None:
        heads = (_QUEUE, _INPUT, _INFER, _OUTPUT, *((_HIT, _MISS) if cached else (_REQUEST,)))
        self._summaries = {head: Summary(quantiles, clock) for head in heads}

    def executed(self, total_ns: int, queued_ns: int, timing: Timing) -> None:
        """Observe an executed request."""
        self._observe(_REQUEST, total_ns)
        self._observe(_QUEUE, queued_ns)
        self._observe(_INPUT, timing.input_ns)
        self._observe(_INFER, timing.infer_ns)
        self._observe(_OUTPUT, timing.output_ns)

    def cache_hit(self, queued_ns: int, lookup_ns: int) -> None:
        """Observe a request that was answered from the response cache."""
        self._observe(_QUEUE, queued_ns)
        self._observe(_HIT, lookup_ns)

    def cache_missed(self, ns: int) -> None:
        """Observe a cache miss, after the response was stored."""
        self._observe(_MISS, ns)

    def _observe(self, head: FamilyHead, ns: int) -> None:
        summary = self._summaries.get(head)
        if summary is not None:
            summary.observe(ns // _NS_PER_US)

    def read(self) -> Mapping[str, Quantiles]:
        """Return the summaries by the names of their families."""
        return {head.name: summary.read() for head, summary in self._summaries.items()}


class _Item(NamedTuple):
    """A value that represents `weight` values up to it; its rank may be up to `slack` higher.

    This is the paper's tuple (v, g, delta).
    """

    value: float
    weight: int
    slack: int


class QuantileSketch:
    """Estimates quantiles of a stream and keeps only the values that the estimates require.

    For a target quantile with error e, the rank of the estimate among n values is off by at most
    e * n + 1. Not thread-safe.
    """

    def __init__(self, targets: Sequence[Quantile]) -> None:
        self._targets = targets
        self._items: list[_Item] = []
        self._buffer: list[float] = []
        self._count = 0

    def insert(self, value: float) -> None:
        """Add `value`."""
        self._buffer.append(value)
        if len(self._buffer) >= _BUFFERED:
            self._merge_buffer()

    def value_at(self, quantile: float) -> float:
        """Return the estimate of a quantile; NaN without values."""
        self._merge_buffer()
        if not self._items:
            return math.nan
        wanted = math.ceil(quantile * self._count)
        bound = wanted + self._allowed(wanted) / 2
        rank = 0
        last = self._items[0].value
        for item in self._items:
            if rank + item.weight + item.slack > bound:
                return last
            rank += item.weight
            last = item.value
        return last

    def _allowed(self, rank: float) -> float:
        """Return the allowed error of a value's rank, if about `rank` values are smaller.

        This is the paper's invariant f(r, n) of targeted quantiles.
        """
        allowed = math.inf
        for quantile, error in ((target.quantile, target.error) for target in self._targets):
            if rank >= quantile * self._count:
                share = rank / quantile if quantile > 0 else math.inf
            else:
                share = (self._count - rank) / (1 - quantile) if quantile < 1 else math.inf
            allowed = min(allowed, 2 * error * share)
        return allowed

    def _merge_buffer(self) -> None:
        """Insert the buffered values and drop the values that are not required."""
        if not self._buffer:
            return
        merged: list[_Item] = []
        kept = iter(self._items)
        following = next(kept, None)
        for value in sorted(self._buffer):
            while following is not None and following.value < value:
                merged.append(following)
                following = next(kept, None)
            slack = following.weight + following.slack - 1 if merged and following else 0
            merged.append(_Item(value, 1, slack))
        if following is not None:
            merged.append(following)
            merged.extend(kept)
        self._count += len(self._buffer)
        self._buffer.clear()
        self._items = self._compressed(merged)

    def _compressed(self, items: list[_Item]) -> list[_Item]:
        """Merge values into their successors where the error allows it; keep the ends."""
        rank = self._count - items[-1].weight
        result = [items[-1]]
        for item in reversed(items[1:-1]):
            rank -= item.weight
            above = result[-1]
            if item.weight + above.weight + above.slack <= self._allowed(rank):
                result[-1] = _Item(above.value, item.weight + above.weight, above.slack)
            else:
                result.append(item)
        if len(items) > 1:
            result.append(items[0])
        result.reverse()
        return result


class Summary:
    """The number and sum of all values, and the quantiles of about the last minute.

    Not thread-safe.
    """

    def __init__(self, targets: Sequence[Quantile], clock: Clock) -> None:
        self._targets = targets
        self._clock = clock
        self._count = 0
        self._sum = 0.0
        # Each sketch starts one window after the previous sketch. The oldest sketch is shown.
        self._sketches = deque(QuantileSketch(targets) for _ in range(_WINDOWS))
        self._began_ns = clock.monotonic_ns()

    def observe(self, value: float) -> None:
        """Add `value`."""
        self._rotate()
        self._count += 1
        self._sum += value
        for sketch in self._sketches:
            sketch.insert(value)

    def read(self) -> Quantiles:
        """Return number, sum and quantiles."""
        self._rotate()
        shown = self._sketches[0]
        return Quantiles(
            self._count,
            self._sum,
            tuple((target.quantile, shown.value_at(target.quantile)) for target in self._targets),
        )

    def _rotate(self) -> None:
        """Replace the sketches that are too old."""
        over = (self._clock.monotonic_ns() - self._began_ns) // _WINDOW_NS
        for _ in range(min(over, _WINDOWS)):
            self._sketches.popleft()
            self._sketches.append(QuantileSketch(self._targets))
        self._began_ns += over * _WINDOW_NS


FIRST_RESPONSES = FamilyHead(
    "nv_inference_first_response_histogram_ms",
    "Duration from request to first response in milliseconds",
    MetricKind.HISTOGRAM,
)
#: In milliseconds.
_BOUNDS = (100.0, 500.0, 2000.0, 5000.0)
_NS_PER_MS = 1_000_000


class FirstResponses:
    """The durations to the first response of one model version, in whole milliseconds. Thread-safe.

    `bounds` are the upper bounds of buckets, by default Triton's.
    """

    def __init__(self, clock: Clock, bounds: Sequence[float] | None = None) -> None:
        self._clock = clock
        self._histogram = Histogram(_BOUNDS if bounds is None else sorted(bounds))

    def await_first(self, request: InferRequest) -> None:
        """Observe the first response of `request`, which is scheduled next."""
        request.sink = _FirstSink(self._clock, self._histogram, request.sink)

    def read(self) -> Distribution:
        """Return all observations."""
        return self._histogram.read()


class _FirstSink:
    """A sink that observes the first response, unless it is empty, and passes on all responses."""

    __slots__ = ("_began_ns", "_clock", "_histogram", "_sink")

    def __init__(self, clock: Clock, histogram: Histogram, sink: ResponseSink) -> None:
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._histogram: Histogram | None = histogram
        self._sink = sink

    def send(self, response: InferResponse) -> None:
        histogram, self._histogram = self._histogram, None
        if histogram is not None and not response.empty:
            histogram.observe((self._clock.monotonic_ns() - self._began_ns) // _NS_PER_MS)
        self._sink.send(response)
