"""Summaries of a model's latencies, as Triton's metrics tell them if they are asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reference_server.core.ports import Clock
from reference_server.core.telemetry import FamilyHead, MetricKind, Quantiles
from reference_server.core.response import Timing
from reference_server.observability.quantiles import Summary
from reference_server.options import Quantile

_NS_PER_US = 1000


def _head(name: str, description: str) -> FamilyHead:
    return FamilyHead(name, description, MetricKind.SUMMARY)


_REQUEST = _head(
    "nv_inference_request_summary_us",
    "Summary of inference request duration in microseconds (includes cached requests)",
)
_QUEUE = _head(
    "nv_inference_queue_summary_us",
    "Summary of inference queuing duration in microseconds (includes cached requests)",
)
_INPUT = _head(
    "nv_inference_compute_input_summary_us",
    "Cumulative compute input duration in microseconds (does not include cached requests)",
)
_INFER = _head(
    "nv_inference_compute_infer_summary_us",
    "Cumulative compute inference duration in microseconds (does not include cached requests)",
)
_OUTPUT = _head(
    "nv_inference_compute_output_summary_us",
    "Cumulative inference compute output duration in microseconds "
    "(does not include cached requests)",
)
_HIT = _head(
    "nv_cache_hit_summary_per_model",
    "Summary of cache hit counts/durations per model, in microseconds.",
)
_MISS = _head(
    "nv_cache_miss_summary_per_model",
    "Summary of cache miss counts/durations per model, in microseconds.",
)

#: In the order of Triton's page.
HEADS = (_REQUEST, _QUEUE, _INPUT, _INFER, _OUTPUT, _HIT, _MISS)


class LatencySummaries:
    """The summaries of one model version. Not thread-safe; durations are in nanoseconds.

    A model that uses the response cache has them of its hits and misses, and, as in Triton, none
    of whole requests.
    """

    def __init__(self, quantiles: Sequence[Quantile], clock: Clock, *, cached: bool) -> None:
        heads = (_QUEUE, _INPUT, _INFER, _OUTPUT, *((_HIT, _MISS) if cached else (_REQUEST,)))
        self._summaries = {head: Summary(quantiles, clock) for head in heads}

    def executed(self, total_ns: int, queued_ns: int, timing: Timing) -> None:
        """A request was executed."""
        self._observe(_REQUEST, total_ns)
        self._observe(_QUEUE, queued_ns)
        self._observe(_INPUT, timing.input_ns)
        self._observe(_INFER, timing.infer_ns)
        self._observe(_OUTPUT, timing.output_ns)

    def cache_hit(self, queued_ns: int, lookup_ns: int) -> None:
        """A request was answered from the response cache."""
        self._observe(_QUEUE, queued_ns)
        self._observe(_HIT, lookup_ns)

    def cache_missed(self, ns: int) -> None:
        """A response was offered to the response cache."""
        self._observe(_MISS, ns)

    def _observe(self, head: FamilyHead, ns: int) -> None:
        summary = self._summaries.get(head)
        if summary is not None:
            summary.observe(ns // _NS_PER_US)

    def read(self) -> Mapping[str, Quantiles]:
        """What they show, by the names of their families."""
        return {head.name: summary.read() for head, summary in self._summaries.items()}
