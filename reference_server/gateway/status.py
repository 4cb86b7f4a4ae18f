"""What the live page shows: the models, what became of them, and what they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reference_server.core.metadata import ServerMetadata
from reference_server.core.ports import Clock
from reference_server.core.telemetry import Snapshot
from reference_server.observability.logs import LogTail
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.manager import Repository
from reference_server.repository.versions import ServedModel, VersionStatus

_NS_PER_MS = 1_000_000
#: Metrics of ge_runtime's models that the page knows.
_MEMORY = "ge_runtime_total_bytes"
_USEFUL = "ge_runtime_useful_elements_total"
_EXECUTED = "ge_runtime_executed_elements_total"
_GEARS = "ge_runtime_gear_launches_total"


class StatusGateway:
    """What a client can ask of the live page's data. Not thread-safe.

    `http_port` is where requests can be sent by a form, if anywhere. Without `log` no line of it is
    told.
    """

    def __init__(
        self,
        repository: Repository,
        registry: MetricRegistry,
        metadata: ServerMetadata,
        clock: Clock,
        *,
        http_port: int | None = None,
        log: LogTail | None = None,
    ) -> None:
        self._repository = repository
        self._registry = registry
        self._metadata = metadata
        self._clock = clock
        self._http_port = http_port
        self._log = log

    def read(self) -> Mapping[str, Any]:
        """All of it, as JSON's values. Times are nanoseconds, of all requests together."""
        served = {(each.config.name, each.version): each for each in self._repository.all()}
        runtimes = self._runtime_metrics()
        return {
            "server": self._metadata.name,
            "version": self._metadata.version,
            "at_ms": self._clock.monotonic_ns() / _NS_PER_MS,
            "http_port": self._http_port,
            "log": self._log is not None,
            "models": [
                _told(
                    status,
                    served.get((status.model, status.version or 0)),
                    runtimes.get((status.model, str(status.version)), _RuntimeMetrics()),
                )
                for status in self._repository.statuses()
            ],
        }

    def log_after(self, number: int) -> Sequence[tuple[int, str]]:
        """The last lines of the log behind that number, each with its own."""
        return [] if self._log is None else self._log.after(number)

    def _runtime_metrics(self) -> Mapping[tuple[str, str], _RuntimeMetrics]:
        """What models on ge_runtime count, by model and version."""
        found: dict[tuple[str, str], _RuntimeMetrics] = {}
        for family in self._registry.read({}):
            if family.head.name not in (_MEMORY, _USEFUL, _EXECUTED, _GEARS):
                continue
            for sample in family.samples:
                if not isinstance(sample.value, int | float):
                    continue
                labels = dict(sample.labels)
                of = labels.get("model", ""), labels.get("version", "")
                own = found.setdefault(of, _RuntimeMetrics())
                if family.head.name == _GEARS:
                    own.gears[labels.get("gear", "")] += sample.value
                else:  # of several instances, each of which has its own memory
                    own.sums[family.head.name] += sample.value
        return found


@dataclass(slots=True)
class _RuntimeMetrics:
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    gears: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def padding(self) -> float | None:
        """The share of the executed elements that nobody asked for."""
        executed = self.sums[_EXECUTED]
        return 1 - self.sums[_USEFUL] / executed if executed else None


def _told(
    status: VersionStatus, served: ServedModel | None, own: _RuntimeMetrics
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
    return told | {
        "instances": len(served.config.instance_names),
        "pending": served.scheduler.pending,
        "counts": _counts(snapshot),
        "batches": _batches(snapshot),
        "memory_bytes": own.sums[_MEMORY],
        "padding": own.padding,
        "gears": sorted(own.gears.items()),
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
