"""The server's metrics of models, response cache and machine, with the names of Triton."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reference_server.core.ports import Clock
from reference_server.core.telemetry import (
    CacheReading,
    Distribution,
    FailureReason,
    FamilyHead,
    Labels,
    MetricKind,
    Quantiles,
    Sample,
    Snapshot,
)
from reference_server.observability.latency_summaries import FIRST_RESPONSES, LATENCY_FAMILIES

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class ModelReading:
    """The values of one model version for the metrics page.

    Attributes:
        tags: The configuration's `metric_tags`.
        cached: The configuration enables the response cache, so there are series of hits and
            misses.
        summaries: Summaries by family name.
        load_s: The duration of loading in seconds; None: the release has no such family.
        first_responses: The durations to the first response; None: the release or the model has no
            such family.
    """

    snapshot: Snapshot
    pending: int
    tags: Labels
    cached: bool = False
    summaries: Mapping[str, Quantiles] = field(default_factory=dict)
    load_s: float | None = None
    first_responses: Distribution | None = None
    namespace: str = ""

    @property
    def labels(self) -> Labels:
        """The labels of each series."""
        own = (("model", self.snapshot.name), ("version", str(self.snapshot.version)))
        where = (("namespace", self.namespace),) if self.namespace else ()
        return tuple(sorted((*own, *where, *((f"_{name}", value) for name, value in self.tags))))


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
MODEL_FAMILIES = (
    *(_FIRST, _FAILURES, *_OTHERS, *_DURATIONS, *_CACHE_COUNTERS),
    _PENDING,
    *LATENCY_FAMILIES,
)


_LOAD = FamilyHead("nv_model_load_duration_secs", "Model load time in seconds", MetricKind.GAUGE)
#: The families of newer releases, in the order of Triton's page after `MODEL_FAMILIES`.
NEWER_FAMILIES = (_LOAD, FIRST_RESPONSES)


def model_samples(
    readings: Iterable[ModelReading], *, counters: bool = True
) -> dict[str, list[Sample]]:
    """Return the series of all models by the names of their families.

    Without `counters` there are no series of durations and of the cache, and the series of requests
    are 0.
    """
    found: dict[str, list[Sample]] = {head.name: [] for head in (*MODEL_FAMILIES, *NEWER_FAMILIES)}
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
        if reading.load_s is not None:
            found[_LOAD.name].append(Sample(labels, reading.load_s))
        if reading.first_responses is not None:
            found[FIRST_RESPONSES.name].append(Sample(labels, reading.first_responses))
    return found


def _cache_gauge(name: str, description: str) -> FamilyHead:
    return FamilyHead(f"nv_cache_{name}", description, MetricKind.GAUGE)


_GAUGES: dict[FamilyHead, Callable[[CacheReading], float]] = {
    _cache_gauge("util", "Cache utilization [0.0 - 1.0]"): lambda cache: cache.utilization,
    _cache_gauge("num_entries", "Number of responses stored in response cache"): lambda cache: (
        cache.entries
    ),
    _cache_gauge("num_hits", "Number of cache hits in response cache"): lambda cache: cache.hits,
    _cache_gauge("num_misses", "Number of cache misses in response cache"): lambda cache: (
        cache.misses
    ),
    _cache_gauge("num_lookups", "Number of cache lookups in response cache"): lambda cache: (
        cache.lookups
    ),
    _cache_gauge("num_evictions", "Number of cache evictions in response cache"): lambda cache: (
        cache.evictions
    ),
    _cache_gauge(
        "lookup_duration", "Total cache lookup duration (hit and miss), in microseconds"
    ): lambda cache: cache.lookup_ns // _NS_PER_US,
    _cache_gauge(
        "insertion_duration", "Total cache insertion duration, in microseconds"
    ): lambda cache: cache.insertion_ns // _NS_PER_US,
}

#: In the order of Triton's page.
CACHE_FAMILIES = tuple(_GAUGES)


def cache_samples(cache: CacheReading) -> dict[str, list[Sample]]:
    """Return the gauges of the response cache by the names of their families."""
    return {head.name: [Sample((), value(cache))] for head, value in _GAUGES.items()}


_BYTES_PER_KIB = 1024
# Words of /proc/stat after `cpu`: user, nice, system, idle, iowait, irq, softirq and steal. The
# following words count guests, which user and nice include.
_ALL_TICKS = slice(1, 9)
_IDLE_TICKS = slice(4, 6)


def _gauge(name: str, description: str) -> FamilyHead:
    return FamilyHead(name, description, MetricKind.GAUGE)


_UTILIZATION = _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]")
MEMORY_TOTAL = _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes")
MEMORY_USED = _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes")
_POOL_TOTAL = _gauge(
    "nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes"
)
_POOL_USED = _gauge(
    "nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes"
)

#: In the order of Triton's page.
HOST_FAMILIES = (_POOL_TOTAL, _POOL_USED, _UTILIZATION, MEMORY_TOTAL, MEMORY_USED)


class HostMetrics:
    """Reads the machine's gauges, at most once per `interval_ns`. Not thread-safe.

    The utilization covers the time between two readings; in the first reading it is 0.
    """

    def __init__(
        self, clock: Clock, interval_ns: int, *, cpu: bool = True, proc: Path = Path("/proc")
    ) -> None:
        self._clock = clock
        self._interval_ns = interval_ns
        self._cpu = cpu
        self._proc = proc
        self._next_ns: int | None = None
        self._busy = self._elapsed = 0
        self._values: dict[FamilyHead, float] = {}

    def samples(self) -> dict[str, list[Sample]]:
        """Return the gauges by the names of their families; the CPU's gauges only on Linux."""
        now = self._clock.monotonic_ns()
        if self._next_ns is None or now >= self._next_ns:
            self._next_ns = now + self._interval_ns
            # There is no pinned memory, as in a Triton whose pool has size 0.
            self._values = {_POOL_TOTAL: 0, _POOL_USED: 0, **(self._read() if self._cpu else {})}
        return {head.name: [Sample((), value)] for head, value in self._values.items()}

    def _read(self) -> dict[FamilyHead, float]:
        try:
            words = (self._proc / "stat").read_text().split()
            memory = (self._proc / "meminfo").read_text()
        except OSError:  # not Linux
            return {}
        total, available = (
            int(kib) * _BYTES_PER_KIB
            for kib in re.findall(r"^Mem(?:Total|Available): +(\d+) kB$", memory, re.MULTILINE)
        )
        return {
            _UTILIZATION: self._utilization(
                sum(map(int, words[_ALL_TICKS])), sum(map(int, words[_IDLE_TICKS]))
            ),
            MEMORY_TOTAL: total,
            MEMORY_USED: total - available,
        }

    def _utilization(self, elapsed: int, idle: int) -> float:
        is_first = not self._elapsed
        busy = elapsed - idle
        spent, passed = busy - self._busy, elapsed - self._elapsed
        self._busy, self._elapsed = busy, elapsed
        return 0.0 if is_first or passed <= 0 else spent / passed
