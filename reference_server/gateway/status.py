"""What the live page shows: the models, what became of them, and what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reference_server.core.metadata import ServerMetadata
from reference_server.core.ports import Clock
from reference_server.core.telemetry import Snapshot
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.manager import Repository
from reference_server.repository.versions import ServedModel, VersionStatus

_NS_PER_MS = 1_000_000
#: Metrics of ge_runtime's models that the page knows.
_MEMORY = "ge_runtime_total_bytes"
_USEFUL = "ge_runtime_useful_elements_total"
_EXECUTED = "ge_runtime_executed_elements_total"


class StatusGateway:
    """What a client can ask of the live page's data. Not thread-safe."""

    def __init__(
        self,
        repository: Repository,
        registry: MetricRegistry,
        metadata: ServerMetadata,
        clock: Clock,
    ) -> None:
        self._repository = repository
        self._registry = registry
        self._metadata = metadata
        self._clock = clock

    def read(self) -> Mapping[str, Any]:
        """All of it, as JSON's values. Times are nanoseconds, of all requests together."""
        served = {(each.config.name, each.version): each for each in self._repository.all()}
        own = self._own_metrics()
        return {
            "server": self._metadata.name,
            "version": self._metadata.version,
            "at_ms": self._clock.monotonic_ns() / _NS_PER_MS,
            "models": [
                _told(status, served.get((status.model, status.version or 0)), own)
                for status in self._repository.statuses()
            ],
        }

    def _own_metrics(self) -> Mapping[tuple[str, str, str], float]:
        """The sums of the metrics above, by metric, model and version."""
        sums: dict[tuple[str, str, str], float] = {}
        for family in self._registry.read({}):
            if family.head.name not in (_MEMORY, _USEFUL, _EXECUTED):
                continue
            for sample in family.samples:
                labels = dict(sample.labels)
                key = family.head.name, labels.get("model", ""), labels.get("version", "")
                if isinstance(sample.value, int | float):
                    sums[key] = sums.get(key, 0) + sample.value
        return sums


def _told(
    status: VersionStatus,
    served: ServedModel | None,
    own: Mapping[tuple[str, str, str], float],
) -> Mapping[str, Any]:
    told: dict[str, Any] = {
        "name": status.model,
        "version": status.version,
        "state": status.state.value,
        "reason": status.reason,
    }
    if served is None:
        return told
    snapshot = served.statistics.snapshot()
    of = status.model, str(status.version)
    executed = own.get((_EXECUTED, *of), 0)
    return told | {
        "instances": len(served.config.instance_names),
        "pending": served.scheduler.pending,
        "counts": _counts(snapshot),
        "batches": _batches(snapshot),
        "memory_bytes": own.get((_MEMORY, *of), 0),
        "padding": 1 - own.get((_USEFUL, *of), 0) / executed if executed else None,
    }


def _counts(snapshot: Snapshot) -> Mapping[str, int]:
    return {
        "success": snapshot.success.count,
        "fail": snapshot.fail.count,
        "queue": snapshot.queue.ns,
        "input": snapshot.compute_input.ns,
        "infer": snapshot.compute_infer.ns,
        "output": snapshot.compute_output.ns,
    }


def _batches(snapshot: Snapshot) -> Sequence[tuple[int, int]]:
    """Batch sizes, and how many executions had each."""
    return [(size, batch.compute_infer.count) for size, batch in sorted(snapshot.batches.items())]
