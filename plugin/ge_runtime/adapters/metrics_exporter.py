"""Exports the runtime's counts as Triton metrics, through `pb_utils.MetricFamily`.

A call into tritonserver takes about 18 us, half of it in tritonserver, so counts are not exported
as they change. The first request batch after an export starts a timer, and its expiry exports all
counts since then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from threading import Lock, Timer
from typing import Any, Final, TypeAlias

from ge_runtime.adapters.responses import PbUtils
from ge_runtime.counts import Counts

# `pb_utils.Metric`: increment, set.
Metric: TypeAlias = Any
# `pb_utils.MetricFamily`: Metric.
Family: TypeAlias = Any

INTERVAL_S: Final = 0.25

COUNTERS: Final = {
    "useful_elements": "Elements of requests that were executed",
    "executed_elements": "Elements of executed batches, padding included",
    "copied_bytes": "Bytes copied between requests, batches and answers",
    "launches": "Executions of the graph",
    "launch_seconds": "Time in executions of the graph",
    "predicted_seconds": "Time that the cost model predicted for executions",
    "measured_seconds": "Time that executions took, gather and scatter included",
    "failed_launches": "Executions of the graph that failed",
    "gear_misses": "Requests that fit no gear",
    "workspace_waits": "Executions that had to wait for workspace",
    "workspace_wait_seconds": "Time that executions waited for workspace",
    "isolations": "Failed executions that a request may have caused",
    "culprits": "Requests identified as the cause of a failed execution",
    "disabled_sizes": "Sizes of executions that failed repeatedly and are not tried again",
    "departed": "Requests dropped after cancellation or past their deadline",
    "refused": "Requests that were invalid",
    "early_answers": "Answers sent before the last execution of their request batch ended",
    "early_seconds": "Time between early answers and the end of their request batches, summed",
    "answer_seconds": "Time from the start of request batches to answers, summed over requests",
    "answers_spilled": "Executions whose answers needed memory beyond the plan",
}
"""Fields of Counts, exported as ge_runtime_<field>_total."""

GAUGES: Final = {
    "weights_bytes": "Planned for each device: weights",
    "workspace_bytes": "Planned for each device: intermediate results of the largest execution",
    "io_bytes": "Planned for each device: inputs and outputs of the largest execution",
    "total_bytes": "Planned for each device: all memory",
    "memory_unplanned": "1 if some memory of the model is in no plan (see its log), else 0",
    "resident_bytes": "Private memory of this process: models and libraries together",
    "workspace_leased_bytes": "Workspace leased now by all models of the process",
    "allocations_after_freeze": "Device allocations while serving: defects, expected to be 0",
    "state_blocks": "Blocks of memory for growing states of sequences",
    "state_blocks_used": "Blocks of growing states that sequences use now",
    "device_unwell": "1 while the device reports a fault or does not respond, else 0",
    "device_free_bytes": "Free memory of the device",
    "device_total_bytes": "Memory of the device",
    "device_cube_percent": "Utilization of the device's matrix units",
    "device_vector_percent": "Utilization of the device's vector units",
    "device_aicpu_percent": "Utilization of the device's AI CPUs",
    "device_memory_percent": "Utilization of the device's memory, or of its bandwidth",
    "cost_drift": "Duration of executions relative to their calibration",
    "size_drift": "Distance of request sizes from those of the gears, from 0 (equal) to 1",
}
"""Current values, exported as ge_runtime_<name>."""

_ROW_BUCKETS: Final = (math.inf, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Upper bounds, the largest first, so that no bucket ever counts less than a smaller bucket."""


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
        """Register the metrics.

        Args:
            pb_utils: The module `triton_python_backend_utils`.
            model: Label of all metrics.
            version: Label of all metrics.
            instance: Label of gauges.
            counts: Returns all counts since the start.
            gauges: Returns values by the names of GAUGES; some may be missing.
        """
        self._read_counts, self._read_gauges = counts, gauges
        self._exported = Counts()
        self._exporting = Lock()  # one export at a time, so that nothing is exported twice
        self._closed = False  # guarded by `_exporting`
        self._arming = Lock()
        self._timer: Timer | None = None
        self._labels = {"model": model, "version": version}
        # Triton removes a family's metrics with the family object, so all are kept.
        self._families: list[Family] = []
        counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE

        def family(name: str, text: str, kind: object) -> Family:
            self._families.append(pb_utils.MetricFamily(f"ge_runtime_{name}", text, kind))
            return self._families[-1]

        self._counters = {
            name: family(f"{name}_total", text, counter).Metric(labels=self._labels)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: family(name, text, gauge).Metric(labels={**self._labels, "instance": instance})
            for name, text in GAUGES.items()
        }
        # The series of a histogram as counters: `Metric.observe` of Triton's histograms would take
        # one call for each execution.
        text = "Rows of an execution, without padding"
        self._rows_count = family("launch_rows_count", text, counter).Metric(labels=self._labels)
        self._rows_sum = family("launch_rows_sum", text, counter).Metric(labels=self._labels)
        buckets = family("launch_rows_bucket", text, counter)
        self._rows_buckets = {
            bound: buckets.Metric(
                labels={**self._labels, "le": "+Inf" if bound == math.inf else str(bound)}
            )
            for bound in _ROW_BUCKETS
        }
        self._gears_family = family("gear_launches_total", "Executions of each gear", counter)
        text = "Executions of several requests, by the reason why these may share one"
        self._shared_family = family("shared_launches_total", text, counter)
        self._shown: dict[str, float] = {}  # the last exported value of each gauge
        self._gears: dict[str, Metric] = {}
        self._shared: dict[str, Metric] = {}
        self.export()

    def note(self) -> None:
        """Note that counts have changed: they are exported within INTERVAL_S."""
        # First without the lock, as this is called after each request batch.
        if self._timer is None:
            with self._arming:
                if self._timer is None and not self._closed:
                    self._timer = Timer(INTERVAL_S, self._fire)
                    self._timer.daemon = True
                    self._timer.start()

    def export(self) -> None:
        """Export the counts since the last export; does nothing after `close`."""
        with self._exporting:
            if not self._closed:
                self._export()

    def close(self) -> None:
        """Export the remaining counts. Safe to call twice."""
        with self._arming:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.export()
        with self._exporting:  # a timer that expired before `cancel` exports nothing after this
            self._closed = True

    def _fire(self) -> None:
        with self._arming:
            self._timer = None  # before the export, so that later counts start the next timer
        self.export()
        if self._shown.get("state_blocks_used"):
            self.note()  # idle sequences end without a request

    def _export(self) -> None:
        counts = self._read_counts()
        fresh, self._exported = counts.since(self._exported), counts
        for name, counter in self._counters.items():
            if amount := getattr(fresh, name):
                counter.increment(amount)
        self._count(fresh.gear_hits, self._gears, self._gears_family, "gear")
        self._count(fresh.shared_launches, self._shared, self._shared_family, "reason")
        if fresh.launch_rows:
            self._rows_count.increment(fresh.launch_rows.total())
            self._rows_sum.increment(sum(rows * count for rows, count in fresh.launch_rows.items()))
        for bound, bucket in self._rows_buckets.items():
            within = sum(count for rows, count in fresh.launch_rows.items() if rows <= bound)
            if within:
                bucket.increment(within)
        for name, value in self._read_gauges().items():
            if self._shown.get(name) != value:
                self._shown[name] = value
                self._gauges[name].set(value)

    def _count(
        self, counts: Mapping[str, int], metrics: dict[str, Metric], family: Family, label: str
    ) -> None:
        """Add to the metrics of a family, one for each value of `label`, created on demand."""
        for value, count in counts.items():
            if value not in metrics:
                metrics[value] = family.Metric(labels={**self._labels, label: value})
            metrics[value].increment(count)
