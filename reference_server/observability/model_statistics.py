"""The statistics of a model version: counts, and sums of durations in nanoseconds.

Names and rules are those of Triton's statistics extension.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reference_server.core.ports import Clock
from reference_server.core.request import Execution, InferRequest, Timing
from reference_server.core.telemetry import (
    BATCH_DURATIONS,
    DURATIONS,
    BatchStatistics,
    Duration,
    FailureReason,
    Quantiles,
    Snapshot,
)
from reference_server.observability.latency_summaries import LatencySummaries

_NS_PER_MS = 1_000_000


class ModelStatistics:
    """The counters of one model version, and optionally its `summaries`. Thread-safe."""

    def __init__(
        self, name: str, version: int, clock: Clock, summaries: LatencySummaries | None = None
    ) -> None:
        self._totals = Snapshot(name, version)
        self._clock = clock
        self._summaries = summaries
        self._lock = threading.Lock()

    def executed(
        self, batch: Sequence[InferRequest], execution: Execution, start_ns: int
    ) -> Timing:
        now = self._clock.monotonic_ns()
        timing = Timing(
            execution.input_end_ns - start_ns,
            execution.output_start_ns - execution.input_end_ns,
            now - execution.output_start_ns,
        )
        count = 0
        rows = 0
        queued_ns = 0
        total_ns = 0
        for request in batch:
            if request.batch_size:  # 0 for the placeholder of an empty sequence slot
                count += 1
                rows += request.batch_size
                queued_ns += start_ns - request.queued_ns
                total_ns += now - request.received_ns
        with self._lock:
            totals = self._totals
            totals.inference_count += rows
            _add(totals.success, total_ns, count)
            _add(totals.queue, queued_ns, count)
            # Each request of a batch counts the durations of the whole batch.
            _add_timing(totals, timing, count)
            # Placeholders have no rows, but they occupy slots of the batch.
            self._count_batch(max(rows, len(batch)), timing)
            if self._summaries is not None:
                for request in batch:
                    if request.batch_size:
                        lasted, waited = now - request.received_ns, start_ns - request.queued_ns
                        self._summaries.executed(lasted, waited, timing)
        return timing

    def failed(self, batch: Sequence[InferRequest], start_ns: int) -> None:
        now = self._clock.monotonic_ns()
        with self._lock:
            clients = [request for request in batch if request.batch_size]
            lasted = sum(now - request.received_ns for request in clients)
            self._count_failures(FailureReason.BACKEND, lasted, len(clients))
            rows = sum(request.batch_size for request in clients)
            self._count_batch(max(rows, len(batch)), Timing(0, now - start_ns, 0))

    def composed(self, request: InferRequest, began_ns: int, steps: Sequence[Timing]) -> Timing:
        """Count a request that an ensemble has answered; its first step started at `began_ns`.

        Returns:
            The sums of the times of `steps`. The models of the steps count the queue times.
        """
        now = self._clock.monotonic_ns()
        timing = Timing(
            sum(step.input_ns for step in steps),
            sum(step.infer_ns for step in steps),
            sum(step.output_ns for step in steps),
        )
        with self._lock:
            totals = self._totals
            totals.inference_count += request.batch_size
            _add(totals.success, now - request.received_ns)
            _add(totals.queue, began_ns - request.queued_ns)
            _add_timing(totals, timing)
            self._count_batch(request.batch_size, timing)
            if self._summaries is not None:
                lasted, waited = now - request.received_ns, began_ns - request.queued_ns
                self._summaries.executed(lasted, waited, timing)
        return timing

    def took_longer(self, request: InferRequest, step: Timing) -> None:
        with self._lock:
            for sums in (self._totals, self._batch(request.batch_size)):
                sums.compute_input.ns += step.input_ns
                sums.compute_infer.ns += step.infer_ns
                sums.compute_output.ns += step.output_ns

    def refused(self, request: InferRequest, reason: FailureReason) -> None:
        """Count an accepted request that got an error without an execution of this model.

        A request of an ensemble that failed in one of its steps is counted here, too.
        """
        with self._lock:
            self._count_failures(reason, self._clock.monotonic_ns() - request.received_ns)

    def cache_hit(self, request: InferRequest, began_ns: int, found_ns: int) -> None:
        now = self._clock.monotonic_ns()
        with self._lock:
            totals = self._totals
            _add(totals.success, now - request.received_ns)
            _add(totals.queue, began_ns - request.queued_ns)
            _add(totals.cache_hit, found_ns - began_ns)
            if self._summaries is not None:
                self._summaries.cache_hit(began_ns - request.queued_ns, found_ns - began_ns)

    def cache_missed(self, ns: int) -> None:
        """Count a cache miss, whose lookup and insertion took `ns`.

        The duration also counts for `success`; the request itself is counted by `executed`.
        """
        with self._lock:
            _add(self._totals.cache_miss, ns)
            self._totals.success.ns += ns
            if self._summaries is not None:
                self._summaries.cache_missed(ns)

    def _count_failures(self, reason: FailureReason, ns: int, count: int = 1) -> None:
        totals = self._totals
        _add(totals.fail, ns, count)
        totals.failures[reason] = totals.failures.get(reason, 0) + count

    def _count_batch(self, rows: int, timing: Timing) -> None:
        totals = self._totals
        totals.execution_count += 1
        totals.last_inference_ms = self._clock.wall_ns() // _NS_PER_MS
        _add_timing(self._batch(rows), timing)

    def _batch(self, rows: int) -> BatchStatistics:
        batch = self._totals.batches.get(rows)
        if batch is None:
            batch = self._totals.batches[rows] = BatchStatistics()
        return batch

    def summaries(self) -> Mapping[str, Quantiles]:
        """Return the summaries by the names of their families."""
        with self._lock:
            return {} if self._summaries is None else self._summaries.read()

    def requests(self) -> tuple[int, int]:
        """Return the number of successful and of failed requests."""
        with self._lock:
            return self._totals.success.count, self._totals.fail.count

    def snapshot(self) -> Snapshot:
        """Return a copy of the counters."""
        with self._lock:
            totals = self._totals
            return replace(
                totals,
                batches={
                    rows: BatchStatistics(**_copied(batch, BATCH_DURATIONS))
                    for rows, batch in sorted(totals.batches.items())
                },
                failures=dict(totals.failures),
                **_copied(totals, DURATIONS),
            )


def _add(duration: Duration, ns: int, count: int = 1) -> None:
    """Add `count` events with a total duration of `ns` nanoseconds."""
    duration.count += count
    duration.ns += ns


def _add_timing(sums: Snapshot | BatchStatistics, timing: Timing, count: int = 1) -> None:
    """Add `count` executions with these durations."""
    _add(sums.compute_input, timing.input_ns * count, count)
    _add(sums.compute_infer, timing.infer_ns * count, count)
    _add(sums.compute_output, timing.output_ns * count, count)


def _copied(sums: Snapshot | BatchStatistics, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(sums, name).copy() for name in names}
