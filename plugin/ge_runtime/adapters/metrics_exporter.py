"""The runtime's counts as Triton metrics, through `pb_utils.MetricFamily`.

A call into tritonserver takes about 10 us, so counts are not exported as they change: the first
request batch after an export arms a timer, and what was counted until it fires goes out together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock, Timer
from typing import Any, Final, TypeAlias

from ge_runtime.adapters.responses import PbUtils
from ge_runtime.counts import Counts

# `pb_utils.Metric`: increment, set, observe.
Metric: TypeAlias = Any
# `pb_utils.MetricFamily`: Metric.
Family: TypeAlias = Any

INTERVAL_S: Final = 0.25

COUNTERS: Final = {
    "useful_elements": "Elements of requests that were executed",
    "executed_elements": "Elements that were executed, padding included",
    "copied_bytes": "Bytes moved between requests, batches and answers",
    "launches": "Executions of the graph",
    "launch_seconds": "Time in executions of the graph",
    "predicted_seconds": "Time that the cost model predicted for launches",
    "measured_seconds": "Time that launches took, gathering and scattering included",
    "failed_launches": "Executions of the graph that failed",
    "gear_misses": "Requests that no gear holds",
    "workspace_waits": "Launches that had to wait for workspace",
    "workspace_wait_seconds": "Time that launches waited for workspace",
    "isolations": "Failed launches, each cut in halves or found to have a single request",
    "culprits": "Requests found to make a launch fail",
    "departed": "Requests dropped after cancellation or past their deadline",
    "refused": "Requests that were not sound",
    "early_answers": "Answers that left before the last launch of their request batch had ended",
    "early_seconds": "Time by which answers left before that, of all requests together",
    "answer_seconds": "Time in which request batches had no answer yet, of all requests together",
    "answers_spilled": "Launches whose answers needed memory beyond the plan",
}
"""Fields of Counts, exported as ge_runtime_<field>_total."""

GAUGES: Final = {
    "weights_bytes": "Planned for each device: weights",
    "workspace_bytes": "Planned for each device: intermediate results of the largest launch",
    "io_bytes": "Planned for each device: inputs and outputs of the largest launch",
    "total_bytes": "Planned for each device: everything",
    "memory_unplanned": "1 if something the model needs is in no plan, as its log says; else 0",
    "resident_bytes": "Memory of this process that no other shares: models and libraries together",
    "workspace_leased_bytes": "Workspace that is leased now, of all models in the process",
    "allocations_after_freeze": "Device allocations while serving: defects, expected to be 0",
    "device_unwell": "1 while the device says that it cannot be used, or does not answer",
    "device_free_bytes": "Memory of the device that no process has taken",
    "device_total_bytes": "Memory of the device",
    "device_cube_percent": "How busy the device's matrix units are",
    "device_vector_percent": "How busy its vector units are",
    "device_aicpu_percent": "How busy its AI CPUs are",
    "device_memory_percent": "How much of its memory, or its bandwidth, is in use",
    "cost_drift": "How many times as long launches take as when they were calibrated",
    "size_drift": "How far sizes are from those the gears were chosen for: 0 not at all, 1 wholly",
}
"""Values at one moment, exported as ge_runtime_<name>."""

_ROW_BUCKETS: Final = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]


class MetricsExporter:
    """Exports the counts of one model instance. Safe from any thread.

    Counters are sums over the instances of a model, gauges belong to one instance.
    """

    def __init__(
        self,
        pb_utils: PbUtils,
        *,
        model: str,
        version: str,
        instance: str,
        counts: Callable[[], Counts],
        gauges: Callable[[], Mapping[str, float]],
    ) -> None:
        """counts: a snapshot of all that was counted; gauges: by the names of GAUGES, or fewer."""
        self._read_counts, self._read_gauges = counts, gauges
        self._exported = Counts()
        self._exporting = Lock()  # one export at a time, so that nothing is exported twice
        self._closed = False  # guarded by it
        self._arming = Lock()
        self._timer: Timer | None = None
        family = pb_utils.MetricFamily
        self._labels = {"model": model, "version": version}
        # Triton forgets a family's metrics with the family, so all are kept.
        self._counter_families = {
            name: family(f"ge_runtime_{name}_total", text, family.COUNTER)
            for name, text in COUNTERS.items()
        }
        self._gauge_families = {
            name: family(f"ge_runtime_{name}", text, family.GAUGE) for name, text in GAUGES.items()
        }
        self._rows_family = family(
            "ge_runtime_launch_rows", "Rows of a launch, without padding", family.HISTOGRAM
        )
        self._gears_family = family(
            "ge_runtime_gear_launches_total", "Launches of each gear", family.COUNTER
        )
        self._shared_family = family(
            "ge_runtime_shared_launches_total",
            "Launches of several requests, by why they may share one",
            family.COUNTER,
        )
        self._counters = {
            name: family.Metric(labels=self._labels)
            for name, family in self._counter_families.items()
        }
        self._gauges = {
            name: family.Metric(labels={**self._labels, "instance": instance})
            for name, family in self._gauge_families.items()
        }
        self._rows = self._rows_family.Metric(labels=self._labels, buckets=_ROW_BUCKETS)
        self._gears: dict[str, Metric] = {}
        self._shared: dict[str, Metric] = {}
        self.export()

    def note(self) -> None:
        """Something was counted: it goes out within INTERVAL_S."""
        # First without the lock: this is called after each request batch.
        if self._timer is None:
            with self._arming:
                if self._timer is None and not self._closed:
                    self._timer = Timer(INTERVAL_S, self._fire)
                    self._timer.daemon = True
                    self._timer.start()

    def export(self) -> None:
        """Export what was counted since the last time; nothing once closed."""
        with self._exporting:
            if not self._closed:
                self._export()

    def close(self) -> None:
        """Export what is left. Safe to call twice."""
        with self._arming:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.export()
        with self._exporting:  # a timer that fired too early to be cancelled finds it closed
            self._closed = True

    def _fire(self) -> None:
        with self._arming:
            self._timer = None  # before the export: what is counted meanwhile arms the next
        self.export()

    def _export(self) -> None:
        counts = self._read_counts()
        fresh, self._exported = counts.since(self._exported), counts
        for name, counter in self._counters.items():
            if amount := getattr(fresh, name):
                counter.increment(amount)
        self._count(fresh.gear_hits, self._gears, self._gears_family, "gear")
        self._count(fresh.shared_launches, self._shared, self._shared_family, "reason")
        for rows, count in fresh.launch_rows.items():
            for _ in range(count):  # `observe` takes one value at a time
                self._rows.observe(rows)
        for name, value in self._read_gauges().items():
            self._gauges[name].set(value)

    def _count(
        self, counts: Mapping[str, int], metrics: dict[str, Metric], family: Family, label: str
    ) -> None:
        """Add to the metrics of a family, one for each value of `label`, made when first needed."""
        for value, count in counts.items():
            if value not in metrics:
                metrics[value] = family.Metric(labels={**self._labels, label: value})
            metrics[value].increment(count)
