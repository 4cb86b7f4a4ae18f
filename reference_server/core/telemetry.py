"""The values of statistics and metrics of models, the response cache and metric families."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Pairs of a label's name and its value, sorted by name.
Labels = tuple[tuple[str, str], ...]
# Prometheus reserves names that start with two underscores.
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class FailureReason(enum.Enum):
    """The reason of a failure; the value is the label in the metrics."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True)
class Duration:
    """The number of occurrences of an event and their total duration."""

    count: int = 0
    ns: int = 0

    def copy(self) -> Duration:
        """Return a copy."""
        return Duration(self.count, self.ns)


#: The names of the durations in BatchStatistics and in Snapshot.
BATCH_DURATIONS = ("compute_input", "compute_infer", "compute_output")
DURATIONS = ("success", "fail", "queue", *BATCH_DURATIONS, "cache_hit", "cache_miss")


@dataclass(slots=True)
class BatchStatistics:
    """The executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The response cache's counters at one moment; `utilization` is the used share of bytes."""

    utilization: float
    entries: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int

    @property
    def lookups(self) -> int:
        """The number of lookups."""
        return self.hits + self.misses


@dataclass(slots=True)
class Snapshot:
    """A copy of a model version's counters at one moment.

    `failures` is the number of failed requests for each reason; `fail` counts all of them.
    """

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    failures: dict[FailureReason, int] = field(default_factory=dict)


def is_label_name(text: str) -> bool:
    """Return True if `text` is a valid name of a Prometheus label."""
    return _LABEL_NAME.fullmatch(text) is not None


class MetricKind(enum.Enum):
    """The type of a metric family; the value is its name in Prometheus' text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Distribution:
    """The observations of a histogram.

    `buckets` are pairs of an inclusive upper bound and the number of values up to it. `count` is
    the number of all values.
    """

    count: int
    sum: float
    buckets: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The observations of a summary.

    `values` are pairs of a quantile from 0 to 1 and its value, which is NaN without recent
    observations. `count` and `sum` include all values.
    """

    count: int
    sum: float
    values: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a family at one moment."""

    labels: Labels
    value: float | Distribution | Quantiles


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """The properties that all series of a family share."""

    name: str
    description: str
    kind: MetricKind


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family at one moment."""

    head: FamilyHead
    samples: Sequence[Sample]
