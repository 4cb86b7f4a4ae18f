"""The server's own metrics of its models, out of their statistics: Triton's names and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from reference_server.core.telemetry import FamilyHead, Labels, MetricKind, Quantiles, Sample
from reference_server.core.telemetry import FailureReason, Snapshot
from reference_server.observability import latencies

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class ModelReading:
    """What there is to show of one model version.

    `tags` are its configuration's `metric_tags`. Only models whose configuration asks for the
    response cache (`cached`) have series of hits and misses. `summaries` are by family.
    """

    snapshot: Snapshot
    pending: int
    tags: Labels
    cached: bool = False
    summaries: Mapping[str, Quantiles] = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        """The labels of each of its series."""
        own = (("model", self.snapshot.name), ("version", str(self.snapshot.version)))
        return tuple(sorted((*own, *((f"_{name}", value) for name, value in self.tags))))


_FAILURES = FamilyHead(
    "nv_inference_request_failure",
    "Number of failed inference requests, all batch sizes",
    MetricKind.COUNTER,
)
_PENDING = FamilyHead(
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
    MetricKind.GAUGE,
)


def _counter(name: str, description: str) -> FamilyHead:
    return FamilyHead(f"nv_inference_{name}", description, MetricKind.COUNTER)


def _cache_counter(name: str, description: str) -> FamilyHead:
    return FamilyHead(f"nv_cache_{name}_per_model", description, MetricKind.COUNTER)


_COUNTS: dict[FamilyHead, Callable[[Snapshot], int]] = {
    _counter(
        "request_success", "Number of successful inference requests, all batch sizes"
    ): lambda snapshot: snapshot.success.count,
    _counter(
        "count", "Number of inferences performed (does not include cached requests)"
    ): lambda snapshot: snapshot.inference_count,
    _counter(
        "exec_count", "Number of model executions performed (does not include cached requests)"
    ): lambda snapshot: snapshot.execution_count,
}
_DURATIONS: dict[FamilyHead, Callable[[Snapshot], int]] = {
    _counter(
        "request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
    ): lambda snapshot: snapshot.success.ns // _NS_PER_US,
    _counter(
        "queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
    ): lambda snapshot: snapshot.queue.ns // _NS_PER_US,
    _counter(
        "compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ): lambda snapshot: snapshot.compute_input.ns // _NS_PER_US,
    _counter(
        "compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ): lambda snapshot: snapshot.compute_infer.ns // _NS_PER_US,
    _counter(
        "compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds "
        "(does not include cached requests)",
    ): lambda snapshot: snapshot.compute_output.ns // _NS_PER_US,
}
_CACHE_COUNTERS: dict[FamilyHead, Callable[[Snapshot], int]] = {
    _cache_counter("num_hits", "Number of cache hits per model"): lambda snapshot: (
        snapshot.cache_hit.count
    ),
    _cache_counter(
        "hit_duration", "Total cache hit duration per model, in microseconds"
    ): lambda snapshot: snapshot.cache_hit.ns // _NS_PER_US,
    _cache_counter("num_misses", "Number of cache misses per model"): lambda snapshot: (
        snapshot.cache_miss.count
    ),
    _cache_counter(
        "miss_duration", "Total cache miss (insert+lookup) duration per model, in microseconds"
    ): lambda snapshot: snapshot.cache_miss.ns // _NS_PER_US,
}
_FIRST, *_OTHERS = _COUNTS

#: In the order of Triton's page.
HEADS = (
    *(_FIRST, _FAILURES, *_OTHERS, *_DURATIONS, *_CACHE_COUNTERS),
    _PENDING,
    *latencies.HEADS,
)


def samples(readings: Iterable[ModelReading], *, counters: bool = True) -> dict[str, list[Sample]]:
    """The series of all models, by the names of their families.

    Without `counters` there are none of durations and of the cache, and those of requests stay 0.
    """
    found: dict[str, list[Sample]] = {head.name: [] for head in HEADS}
    for reading in readings:
        labels, snapshot = reading.labels, reading.snapshot
        for head, count in _COUNTS.items():
            found[head.name].append(Sample(labels, count(snapshot) if counters else 0))
        shown = _DURATIONS | (_CACHE_COUNTERS if reading.cached else {}) if counters else {}
        for head, count in shown.items():
            found[head.name].append(Sample(labels, count(snapshot)))
        for name, quantiles in reading.summaries.items():
            found[name].append(Sample(labels, quantiles))
        for reason in FailureReason:
            failures = snapshot.failures.get(reason, 0) if counters else 0
            labelled = tuple(sorted((*labels, ("reason", reason.value))))
            found[_FAILURES.name].append(Sample(labelled, failures))
        found[_PENDING.name].append(Sample(labels, reading.pending))
    return found
