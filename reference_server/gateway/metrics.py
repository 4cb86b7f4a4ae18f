"""The one operation of the metrics port, over the loaded models."""

from __future__ import annotations

from reference_server.core.telemetry import Family
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.observability.server_metrics import (
    CACHE_FAMILIES,
    HOST_FAMILIES,
    MODEL_FAMILIES,
    HostMetrics,
    ModelReading,
    cache_samples,
    model_samples,
)
from reference_server.options import LatencyMetrics
from reference_server.repository.manager import Repository
from reference_server.repository.versions import ServedModel
from reference_server.scheduling.response_cache import ResponseCache


def new_registry() -> MetricRegistry:
    """A registry that knows the server's own families, so that no model's can contradict them."""
    return MetricRegistry((*MODEL_FAMILIES, *HOST_FAMILIES, *CACHE_FAMILIES))


class MetricsGateway:
    """What a client can ask of the metrics port. Not thread-safe."""

    def __init__(
        self,
        repository: Repository,
        registry: MetricRegistry,
        host: HostMetrics,
        latencies: LatencyMetrics | None = None,
        cache: ResponseCache | None = None,
    ) -> None:
        self._repository = repository
        self._registry = registry
        self._host = host
        self._latencies = latencies or LatencyMetrics()
        self._cache = cache

    def families(self) -> list[Family]:
        """All metrics as they are now: those of the models, the machine, and the models' own."""
        readings = map(_reading, self._repository.all())
        counters = self._latencies.counters
        cache = {} if self._cache is None else cache_samples(self._cache.reading())
        return self._registry.read(
            {
                **model_samples(readings, counters=counters),
                **self._host.samples(),
                **cache,
            }
        )


def _reading(served: ServedModel) -> ModelReading:
    return ModelReading(
        served.statistics.snapshot(),
        served.scheduler.pending,
        served.config.metric_tags,
        served.config.caches_responses,
        served.statistics.summaries(),
    )
