"""The one operation of the metrics port, over the loaded models."""

from __future__ import annotations

from reference_server.core.metrics import Family
from reference_server.observability import host_metrics, model_metrics
from reference_server.observability.host_metrics import HostMetrics
from reference_server.observability.metrics import MetricRegistry
from reference_server.observability.model_metrics import ModelReading
from reference_server.repository.manager import Repository
from reference_server.repository.served import ServedModel


def new_registry() -> MetricRegistry:
    """A registry that knows the server's own families, so that no model's can contradict them."""
    return MetricRegistry((*model_metrics.HEADS, *host_metrics.HEADS))


class MetricsGateway:
    """What a client can ask of the metrics port. Not thread-safe."""

    def __init__(self, repository: Repository, registry: MetricRegistry, host: HostMetrics) -> None:
        self._repository = repository
        self._registry = registry
        self._host = host

    def families(self) -> list[Family]:
        """All metrics as they are now: those of the models, the machine, and the models' own."""
        readings = map(_reading, self._repository.all())
        return self._registry.read({**model_metrics.samples(readings), **self._host.samples()})


def _reading(served: ServedModel) -> ModelReading:
    return ModelReading(
        served.statistics.snapshot(),
        served.scheduler.pending,
        "OTHER" if served.config.is_ensemble else "BACKEND",
        served.config.metric_tags,
    )
