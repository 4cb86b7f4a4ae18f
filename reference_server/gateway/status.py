"""What the live page shows: the models, what became of them, and what they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
RUNTIME_FAMILIES = (_MEMORY, _USEFUL, _EXECUTED, _GEARS)


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
        runtimes = by_model(self._samples())
        return {
            "title": "Reference server",
            "server": f"{self._metadata.name}, standing in for Triton {self._metadata.version}",
            "at_ms": self._clock.monotonic_ns() / _NS_PER_MS,
            "http_port": self._http_port,
            "log": self._log is not None,
            "models": [
                _told(
                    status,
                    served.get((status.model, status.version or 0)),
                    runtimes.get((status.model, str(status.version)), RuntimeMetrics()),
                )
                for status in self._repository.statuses()
            ],
        }

    def log_after(self, number: int) -> Sequence[tuple[int, str]]:
        """The last lines of the log behind that number, each with its own."""
        return [] if self._log is None else self._log.after(number)

    def _samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        for family in self._registry.read({}):
            if family.head.name in RUNTIME_FAMILIES:
                for sample in family.samples:
                    if isinstance(sample.value, int | float):
                        yield family.head.name, dict(sample.labels), sample.value


@dataclass(slots=True)
class RuntimeMetrics:
    """What one model on ge_runtime counts, of all its instances."""

    _sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _gears: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, family: str, labels: Mapping[str, str], value: float) -> None:
        """Take in one of its series."""
        if family == _GEARS:
            self._gears[labels.get("gear", "")] += value
        else:  # of several instances, each of which has its own memory
            self._sums[family] += value

    def told(self) -> Mapping[str, Any]:
        """As the page knows it; `padding` is the share of executed elements nobody asked for."""
        executed = self._sums[_EXECUTED]
        return {
            "memory_bytes": self._sums[_MEMORY],
            "padding": 1 - self._sums[_USEFUL] / executed if executed else None,
            "gears": sorted(self._gears.items()),
        }


def by_model(
    samples: Iterable[tuple[str, Mapping[str, str], float]],
) -> Mapping[tuple[str, str], RuntimeMetrics]:
    """What models on ge_runtime count, by model and version: families of `RUNTIME_FAMILIES`."""
    found: dict[tuple[str, str], RuntimeMetrics] = {}
    for family, labels, value in samples:
        of = labels.get("model", ""), labels.get("version", "")
        found.setdefault(of, RuntimeMetrics()).add(family, labels, value)
    return found


def _told(
    status: VersionStatus, served: ServedModel | None, own: RuntimeMetrics
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
        **own.told(),
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
