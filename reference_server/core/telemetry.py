"""The values of statistics and metrics: of a model, of the response cache, of metric families."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Pairs of a label's name and its value, sorted by name.
Labels = tuple[tuple[str, str], ...]
# Two underscores in front are Prometheus' own.
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class FailureReason(enum.Enum):
    """Why a request failed, as the metrics tell it: the value is the label."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True)
class Duration:
    """How often something happened and how long it took together."""

    count: int = 0
    ns: int = 0

    def copy(self) -> Duration:
        """A value of its own."""
        return Duration(self.count, self.ns)


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The response cache's counters at one moment; `utilization` is of its bytes, from 0 to 1."""

    utilization: float
    entries: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int

    @property
    def lookups(self) -> int:
        """How often a response was looked for."""
        return self.hits + self.misses


@dataclass(slots=True)
class Snapshot:
    """A model version's counters at one moment; a copy, safe to keep.

    `failures` are the requests that `fail` counts, by reason.
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
    """Whether Prometheus lets a label have this name."""
    return _LABEL_NAME.fullmatch(text) is not None


class MetricKind(enum.Enum):
    """What a family's values are; the value is its name in Prometheus' text."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has observed.

    `buckets` are pairs of an upper bound, which is included, and the number of values up to it;
    `count` is the number of all values.
    """

    count: int
    sum: float
    buckets: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """What a summary has observed.

    `values` are pairs of a quantile, from 0 to 1, and the value there; NaN if nothing was observed
    lately. `count` and `sum` are those of all values.
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
    """What the series of a family have in common."""

    name: str
    description: str
    kind: MetricKind


@dataclass(frozen=True, slots=True)
class Family:
    """A family at one moment."""

    head: FamilyHead
    samples: Sequence[Sample]
