"""The data of the live page: the models, their states and their counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reference_server.core.metadata import ServerMetadata
from reference_server.core.portability import Portability
from reference_server.core.ports import Clock
from reference_server.core.telemetry import Snapshot
from reference_server.observability.logs import LogTail
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.observability.server_metrics import MEMORY_TOTAL, MEMORY_USED, HostMetrics
from reference_server.repository.manager import Repository
from reference_server.repository.versions import ServedModel, VersionStatus

_NS_PER_MS = 1_000_000
#: The interval and the number of the samples for the page's charts: ten minutes.
_SAMPLE_NS, _MOST_SAMPLES = 5_000_000_000, 120
#: The metrics of ge_runtime's models that the page shows.
_MEMORY = "ge_runtime_total_bytes"
_USEFUL = "ge_runtime_useful_elements_total"
_EXECUTED = "ge_runtime_executed_elements_total"
_GEARS = "ge_runtime_gear_launches_total"
RUNTIME_FAMILIES = (_MEMORY, _USEFUL, _EXECUTED, _GEARS)


class StatusGateway:
    """The data of the live page. Any thread may call `read`, one at a time.

    `http_port` is the port for the requests of the page's form, if any. Without `log` the page
    shows no log. `portability` has the uses that tritonserver 2.51 does not support. `host` reads
    the memory of the machine.
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
        portability: Portability | None = None,
        host: HostMetrics | None = None,
    ) -> None:
        self._repository = repository
        self._registry = registry
        self._metadata = metadata
        self._clock = clock
        self._http_port = http_port
        self._log = log
        self._portability = portability or Portability()
        self._host = host
        self._history: tuple[tuple[float, int, int, int], ...] = ()
        self._sampled_ns: int | None = None

    def sample(self) -> None:
        """Keep the sums over all models, at most every five seconds.

        Must be called regularly, by one thread.
        """
        now_ns = self._clock.monotonic_ns()
        if self._sampled_ns is not None and now_ns - self._sampled_ns < _SAMPLE_NS:
            return
        self._sampled_ns = now_ns
        succeeded = failed = waiting = 0
        for served in self._repository.all():
            counts = served.statistics.requests()
            succeeded, failed = succeeded + counts[0], failed + counts[1]
            waiting += served.scheduler.pending
        # Replaced, not changed: another thread reads it.
        point = (now_ns / _NS_PER_MS, succeeded, failed, waiting)
        self._history = (*self._history[1 - _MOST_SAMPLES :], point)

    def read(self) -> Mapping[str, Any]:
        """Return the data as JSON values. Times are sums over all requests, in nanoseconds.

        `history` has a time in milliseconds and three sums over all models for each sample:
        successful, failed and waiting requests.
        """
        served = {(each.config.name, each.version): each for each in self._repository.all()}
        runtimes = by_model(self._samples())
        return {
            "title": "Reference server",
            "server": f"{self._metadata.name}, standing in for Triton {self._metadata.version}",
            "at_ms": self._clock.monotonic_ns() / _NS_PER_MS,
            "http_port": self._http_port,
            "log": self._log is not None,
            "history": self._history,
            "machine": {} if self._host is None else _machine(self._host),
            "models": [
                _model_data(
                    status,
                    served.get((status.model, status.version or 0)),
                    runtimes.get((status.model, str(status.version)), RuntimeMetrics()),
                )
                | self._portability_of(status.model)
                for status in self._repository.statuses()
            ],
        }

    def _portability_of(self, model: str) -> dict[str, Any]:
        found = self._portability.of(model)
        return {"not_portable": found} if found else {}

    def log_after(self, number: int) -> Sequence[tuple[int, str]]:
        """Return the last lines of the log after line `number`, with their numbers."""
        return [] if self._log is None else self._log.after(number)

    def _samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        for family in self._registry.read({}):
            if family.head.name in RUNTIME_FAMILIES:
                for sample in family.samples:
                    if isinstance(sample.value, int | float):
                        yield family.head.name, dict(sample.labels), sample.value


def _machine(host: HostMetrics) -> Mapping[str, object]:
    samples = host.samples()
    names = {"used": MEMORY_USED.name, "total": MEMORY_TOTAL.name}
    return {key: samples[name][0].value for key, name in names.items() if name in samples}


@dataclass(slots=True)
class RuntimeMetrics:
    """The counters of one model on ge_runtime, summed over its instances."""

    _sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _gears: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, family: str, labels: Mapping[str, str], value: float) -> None:
        """Add the value of one series."""
        if family == _GEARS:
            self._gears[labels.get("gear", "")] += value
        else:  # each instance has a series
            self._sums[family] += value

    def shown(self) -> Mapping[str, Any]:
        """Return the data of the page; `padding` is the share of padding in executed elements."""
        executed = self._sums[_EXECUTED]
        return {
            "memory_bytes": self._sums[_MEMORY],
            "padding": 1 - self._sums[_USEFUL] / executed if executed else None,
            "gears": sorted(self._gears.items()),
        }


def by_model(
    samples: Iterable[tuple[str, Mapping[str, str], float]],
) -> Mapping[tuple[str, str], RuntimeMetrics]:
    """Return the counters of `RUNTIME_FAMILIES`, by model and version."""
    found: dict[tuple[str, str], RuntimeMetrics] = {}
    for family, labels, value in samples:
        key = labels.get("model", ""), labels.get("version", "")
        found.setdefault(key, RuntimeMetrics()).add(family, labels, value)
    return found


def _model_data(
    status: VersionStatus, served: ServedModel | None, own: RuntimeMetrics
) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": status.model,
        "version": status.version,
        "state": status.state.value,
        "reason": status.reason,
    }
    if served is None:
        return shown
    snapshot = served.statistics.snapshot()
    return shown | {
        "instances": len(served.config.instance_names),
        "pending": served.scheduler.pending,
        "counts": _counts(snapshot),
        "batches": _batches(snapshot),
        **own.shown(),
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
    """Return the batch sizes, and the number of executions with each."""
    return [(size, batch.compute_infer.count) for size, batch in sorted(snapshot.batches.items())]
