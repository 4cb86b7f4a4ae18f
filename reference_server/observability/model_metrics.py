"""The server's own metrics of its models, out of their statistics: Triton's names and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from reference_server.core.metrics import FamilyHead, Labels, MetricKind, Sample
from reference_server.core.statistics import Snapshot

_NS_PER_US = 1000
_ALL_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


@dataclass(frozen=True, slots=True)
class ModelReading:
    """What there is to show of one model version.

    `tags` are its configuration's `metric_tags`. All its failures are for one `failure_reason`:
    BACKEND where a backend runs the model, OTHER for an ensemble.
    """

    snapshot: Snapshot
    pending: int
    failure_reason: str
    tags: Labels

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


_COUNTERS: dict[FamilyHead, Callable[[Snapshot], int]] = {
    _counter(
        "request_success", "Number of successful inference requests, all batch sizes"
    ): lambda snapshot: snapshot.success.count,
    _counter(
        "count", "Number of inferences performed (does not include cached requests)"
    ): lambda snapshot: snapshot.inference_count,
    _counter(
        "exec_count", "Number of model executions performed (does not include cached requests)"
    ): lambda snapshot: snapshot.execution_count,
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
_FIRST, *_OTHERS = _COUNTERS

#: In the order of Triton's page.
HEADS = (_FIRST, _FAILURES, *_OTHERS, _PENDING)


def samples(readings: Iterable[ModelReading]) -> dict[str, list[Sample]]:
    """The series of all models, by the names of their families."""
    found: dict[str, list[Sample]] = {head.name: [] for head in HEADS}
    for reading in readings:
        labels = reading.labels
        for head, count in _COUNTERS.items():
            found[head.name].append(Sample(labels, count(reading.snapshot)))
        for reason in _ALL_REASONS:
            failures = reading.snapshot.fail.count if reason == reading.failure_reason else 0
            labelled = tuple(sorted((*labels, ("reason", reason))))
            found[_FAILURES.name].append(Sample(labelled, failures))
        found[_PENDING.name].append(Sample(labels, reading.pending))
    return found
