"""The statistics of a model version: counts, and durations as sums in nanoseconds.

What counts where, and the names, are those of Triton's statistics extension.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from reference_server.core.ports import Clock
from reference_server.core.request import Execution, InferRequest, Timing
from reference_server.core.telemetry import (
    BatchStatistics,
    Duration,
    FailureReason,
    Quantiles,
    Snapshot,
)
from reference_server.observability.latency_summaries import LatencySummaries

_NS_PER_MS = 1_000_000


class ModelStatistics:
    """The counters of one model version, and its `summaries`, if there are any. Any thread."""

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
        """An instance ran `batch`, from `start_ns` on, and answers it now."""
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
            if request.batch_size:  # one without a client fills a place in this batch
                count += 1
                rows += request.batch_size
                queued_ns += start_ns - request.queued_ns
                total_ns += now - request.received_ns
        with self._lock:
            totals = self._totals
            totals.inference_count += rows
            _add(totals.success, total_ns, count)
            _add(totals.queue, queued_ns, count)
            # Each request of a batch is charged with the whole batch's durations.
            _add(totals.compute_input, timing.input_ns * count, count)
            _add(totals.compute_infer, timing.infer_ns * count, count)
            _add(totals.compute_output, timing.output_ns * count, count)
            # Requests without a client have no rows, but a place in the batch.
            self._count_batch(max(rows, len(batch)), timing)
            if self._summaries is not None:
                for request in batch:
                    if request.batch_size:
                        lasted, waited = now - request.received_ns, start_ns - request.queued_ns
                        self._summaries.executed(lasted, waited, timing)
        return timing

    def failed(self, batch: Sequence[InferRequest], start_ns: int) -> None:
        """An instance ran `batch` from `start_ns` on, and the batch failed as a whole."""
        now = self._clock.monotonic_ns()
        with self._lock:
            clients = [request for request in batch if request.batch_size]
            lasted = sum(now - request.received_ns for request in clients)
            self._count_failures(FailureReason.BACKEND, lasted, len(clients))
            rows = sum(request.batch_size for request in clients)
            self._count_batch(max(rows, len(batch)), Timing(0, now - start_ns, 0))

    def composed(self, request: InferRequest, began_ns: int, steps: Sequence[Timing]) -> Timing:
        """An ensemble answered `request` after `steps`, which began at `began_ns`.

        Returns the sums of the steps. Where a step waited is told by its own model.
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
            _add(totals.compute_input, timing.input_ns)
            _add(totals.compute_infer, timing.infer_ns)
            _add(totals.compute_output, timing.output_ns)
            self._count_batch(request.batch_size, timing)
            if self._summaries is not None:
                lasted, waited = now - request.received_ns, began_ns - request.queued_ns
                self._summaries.executed(lasted, waited, timing)
        return timing

    def took_longer(self, request: InferRequest, step: Timing) -> None:
        """A step of an ensemble's `request` ended after its answer, which `composed` counts."""
        with self._lock:
            totals, batch = self._totals, self._batch(request.batch_size)
            for sums in (totals, batch):
                sums.compute_input.ns += step.input_ns
                sums.compute_infer.ns += step.infer_ns
                sums.compute_output.ns += step.output_ns

    def refused(self, request: InferRequest, reason: FailureReason) -> None:
        """`request` was accepted, and answered with an error that no execution gave.

        An ensemble's request that failed in one of its steps is such a one too.
        """
        with self._lock:
            self._count_failures(reason, self._clock.monotonic_ns() - request.received_ns)

    def cache_hit(self, request: InferRequest, began_ns: int, found_ns: int) -> None:
        """The response cache, asked at `began_ns`, had the answer at `found_ns`; it is sent now."""
        now = self._clock.monotonic_ns()
        with self._lock:
            totals = self._totals
            _add(totals.success, now - request.received_ns)
            _add(totals.queue, began_ns - request.queued_ns)
            _add(totals.cache_hit, found_ns - began_ns)
            if self._summaries is not None:
                self._summaries.cache_hit(began_ns - request.queued_ns, found_ns - began_ns)

    def cache_missed(self, ns: int) -> None:
        """A response was offered to the response cache; looking up and storing it took `ns`.

        The time counts with the successes, too, though the request is counted elsewhere.
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
        batch = self._batch(rows)
        _add(batch.compute_input, timing.input_ns)
        _add(batch.compute_infer, timing.infer_ns)
        _add(batch.compute_output, timing.output_ns)

    def _batch(self, rows: int) -> BatchStatistics:
        batch = self._totals.batches.get(rows)
        if batch is None:
            batch = self._totals.batches[rows] = BatchStatistics()
        return batch

    def summaries(self) -> Mapping[str, Quantiles]:
        """What the summaries show, by the names of their families."""
        with self._lock:
            return {} if self._summaries is None else self._summaries.read()

    def snapshot(self) -> Snapshot:
        """The counters as they are now."""
        with self._lock:
            totals = self._totals
            return Snapshot(
                totals.name,
                totals.version,
                totals.last_inference_ms,
                totals.inference_count,
                totals.execution_count,
                totals.success.copy(),
                totals.fail.copy(),
                totals.queue.copy(),
                totals.compute_input.copy(),
                totals.compute_infer.copy(),
                totals.compute_output.copy(),
                totals.cache_hit.copy(),
                totals.cache_miss.copy(),
                {
                    rows: BatchStatistics(
                        batch.compute_input.copy(),
                        batch.compute_infer.copy(),
                        batch.compute_output.copy(),
                    )
                    for rows, batch in sorted(totals.batches.items())
                },
                dict(totals.failures),
            )


def _add(duration: Duration, ns: int, count: int = 1) -> None:
    """Count `count` more events, which took `ns` nanoseconds together."""
    duration.count += count
    duration.ns += ns
