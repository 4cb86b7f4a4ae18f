"""Merge the states of replicas into one server's."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from reference_server.core.request import LATEST
from reference_server.core.telemetry import (
    BatchStatistics,
    Duration,
    Family,
    FamilyHead,
    Sample,
    Snapshot,
)
from reference_server.repository.versions import IndexEntry, State

#: The label of the replica in metrics.
REPLICA = "replica"
_DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
_OF_BATCHES = ("compute_input", "compute_infer", "compute_output")


def statistics(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Return the counters of each version of each model, summed over replicas."""
    found: dict[tuple[str, int], Snapshot] = {}
    for snapshot in snapshots:
        key = (snapshot.name, snapshot.version)
        if key in found:
            _add(found[key], snapshot)
        else:
            found[key] = copy.deepcopy(snapshot)
    return [found[key] for key in sorted(found)]


def _add(total: Snapshot, more: Snapshot) -> None:
    total.last_inference_ms = max(total.last_inference_ms, more.last_inference_ms)
    total.inference_count += more.inference_count
    total.execution_count += more.execution_count
    for name in _DURATIONS:
        _add_duration(getattr(total, name), getattr(more, name))
    for size, batches in more.batches.items():
        into = total.batches.setdefault(size, BatchStatistics())
        for name in _OF_BATCHES:
            _add_duration(getattr(into, name), getattr(batches, name))
    for reason, count in more.failures.items():
        total.failures[reason] = total.failures.get(reason, 0) + count


def _add_duration(total: Duration, more: Duration) -> None:
    total.count += more.count
    total.ns += more.ns


def families(pages: Mapping[str, Sequence[Family]]) -> list[Family]:
    """Return the metrics of all replicas; each series has a label with its replica."""
    found: dict[str, tuple[FamilyHead, list[Sample]]] = {}
    for replica, page in pages.items():
        for family in page:
            _, samples = found.setdefault(family.head.name, (family.head, []))
            samples += (
                replace(sample, labels=(*sample.labels, (REPLICA, replica)))
                for sample in family.samples
            )
    return [Family(head, samples) for head, samples in found.values()]


def of_version(snapshots: Iterable[Snapshot], version: int) -> list[Snapshot]:
    """Return the counters of one version, or of all, summed over replicas."""
    return [each for each in statistics(snapshots) if version in (LATEST, each.version)]


def index(
    models: Iterable[str], entries: Iterable[IndexEntry], *, ready_only: bool
) -> list[IndexEntry]:
    """Return the index of all models. A model without a replica is unavailable."""
    rows: dict[tuple[str, int | None], IndexEntry] = {}
    for row in entries:
        rows.setdefault((row.name, row.version), row)
    named = {name for name, _ in rows}
    for name in models:
        if name not in named:
            rows[name, None] = IndexEntry(name, None, State.UNAVAILABLE, "no replica runs")
    found = [row for _, row in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] or 0))]
    return [row for row in found if not ready_only or row.state is State.READY]
