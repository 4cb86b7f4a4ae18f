"""The histogram of the durations from requests to their first responses."""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.core.ports import Clock
from reference_server.core.request import InferRequest, InferResponse, ResponseSink
from reference_server.core.telemetry import Distribution, FamilyHead, MetricKind
from reference_server.observability.metric_registry import Histogram

FIRST_RESPONSES = FamilyHead(
    "nv_inference_first_response_histogram_ms",
    "Duration from request to first response in milliseconds",
    MetricKind.HISTOGRAM,
)
#: In milliseconds.
_BOUNDS = (100.0, 500.0, 2000.0, 5000.0)
_NS_PER_MS = 1_000_000


class FirstResponses:
    """The durations of one model version, in whole milliseconds. Thread-safe.

    `bounds` are the upper bounds of buckets, by default those of Triton.
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
