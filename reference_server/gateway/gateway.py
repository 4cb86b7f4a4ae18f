"""Health, metadata, configuration, statistics and metrics."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

from reference_server.core.backlog import Backlogs
from reference_server.core.errors import invalid_arg, unavailable
from reference_server.core.health import Probe
from reference_server.core.metadata import ModelMetadata, ServerMetadata, Signature
from reference_server.core.ports import Clock
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import LATEST
from reference_server.core.telemetry import Family, Sample, Snapshot
from reference_server.gateway.log_and_trace_settings import LogSettings, TraceSettings
from reference_server.observability import logs
from reference_server.observability.incidents import OPERATORS_FAMILIES
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.observability.sampling import TraceMode
from reference_server.observability.server_metrics import (
    CACHE_FAMILIES,
    HOST_FAMILIES,
    MODEL_FAMILIES,
    NEWER_FAMILIES,
    HostMetrics,
    ModelReading,
    cache_samples,
    model_samples,
)
from reference_server.observability.spans import SPANS, SpanExporter, SpanMode
from reference_server.observability.tracing import FileMode
from reference_server.options import LatencyMetrics, ServerOptions, TraceOptions
from reference_server.repository.manager import Repository
from reference_server.repository.versions import ServedModel
from reference_server.scheduling.response_cache import ResponseCache

_NS_PER_S = 1_000_000_000
#: The protocol extensions that the metadata of the server lists.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class ServerState(enum.Enum):
    """The state of a server whose ports are open; it decides which requests are answered."""

    #: The repository could not be read, and `--exit-on-error=false` keeps the server running.
    FAILED = "failed"
    READY = "ready"
    #: New requests are refused, and the models are unloaded.
    STOPPING = "stopping"

    def check_live(self) -> None:
        """Raise ServerError if the server does not report its health any more."""
        if self is ServerState.STOPPING:
            raise unavailable("Server exiting")

    def check_ready(self) -> None:
        """Raise ServerError if the server does not report or load models."""
        if self is not ServerState.READY:
            raise unavailable("Server not ready")


#: The statistics of at most this many models take a millisecond of work.
_MANY = 16


class Gateway:
    """The operations that a client can request of the server, except inference. Any thread.

    `logging` and `tracing` are the settings that a client can change; `backlogs` are the responses
    that wait for clients. Operations on models raise ServerError UNAVAILABLE while the server is
    not ready.
    """

    def __init__(self, repository: Repository, options: ServerOptions, clock: Clock) -> None:
        self._repository = repository
        #: Returns the model with the given name and version (or LATEST). Raises ServerError
        #: NOT_FOUND.
        # Bound directly, since every request calls it.
        self.find = repository.find
        self._state = ServerState.READY
        self._options = options
        self._metadata = ServerMetadata(options.server_id, options.profile.version, EXTENSIONS)
        self.backlogs = Backlogs()
        self.logging = LogSettings(options.log, logs.apply)
        self.tracing = TraceSettings(
            options.trace, _trace_mode(options.trace, clock), self._is_loaded
        )

    def failed(self) -> None:
        """Mark the server as running without models."""
        self._state = ServerState.FAILED
        self.find = self._refuse

    def stopping(self) -> None:
        """Mark the server as stopping; the models themselves refuse new requests."""
        self._state = ServerState.STOPPING
        self.backlogs.lift()  # otherwise a model could wait for a client that does not read

    def _refuse(self, name: str, version: int = LATEST) -> ServedModel:
        self.check_ready()
        return self._repository.find(name, version)

    def check_ready(self) -> None:
        """Raise ServerError UNAVAILABLE if the server does not report or load models."""
        self._state.check_ready()

    def live(self) -> bool:
        """Return False if the server has no repository.

        Raises ServerError UNAVAILABLE while the server stops.
        """
        self._state.check_live()
        return self._state is ServerState.READY

    def ready(self) -> Sequence[Probe] | None:
        """Return the models' probes, which decide whether the server is ready.

        The result is mostly empty. It is None if the server is not ready: it has no repository or,
        with strict readiness, a model did not load. Raises ServerError UNAVAILABLE while the server
        stops.
        """
        if not self.live():
            return None
        if not self._options.strict_readiness:
            return ()
        if not self._repository.is_complete:
            return None
        if not self._options.profile.newer_readiness:
            return ()
        healths = [served.health for served in self._repository.all()]
        if any(health.own_reason for health in healths):
            return None
        return [probe for health in healths for probe in health.own_probes]

    def server_metadata(self) -> ServerMetadata:
        """Return name, version and extensions."""
        return self._metadata

    def model_ready(self, name: str, version: int = LATEST) -> Sequence[Probe] | None:
        """Return the probes that decide whether a model is ready.

        The result is mostly empty. It is None if the version, or the latest one, is not loaded or
        not healthy.
        """
        self.check_ready()
        versions = self._repository.versions(name)
        if version != LATEST:
            versions = [served for served in versions if served.version == version]
        if not versions:
            return None
        health = versions[-1].health
        if self._options.profile.newer_readiness:
            return None if health.own_reason else health.own_probes
        return None if health.reason else ()

    def _is_loaded(self, name: str) -> bool:
        self.check_ready()
        return bool(self._repository.versions(name))

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """Return versions, platform and tensors. Raises ServerError NOT_FOUND."""
        self.check_ready()
        served = self.find(name, version)
        versions = (
            [loaded.version for loaded in self._repository.versions(name)]
            if version == LATEST
            else [version]
        )
        return ModelMetadata(served.config.signature, tuple(versions), served.config.shown_platform)

    def signatures(self) -> Sequence[tuple[Signature, bool]]:
        """Return the signature of each model's latest version, and whether it is decoupled."""
        self.check_ready()
        latest = {served.config.name: served.config for served in self._repository.all()}
        return [(config.signature, config.decoupled) for config in latest.values()]

    def model_config(self, name: str, version: int = LATEST) -> str:
        """Return the completed configuration as JSON. Raises ServerError NOT_FOUND."""
        return self.find(name, version).config.json

    def has_many(self) -> bool:
        """Return whether the statistics of all models take more than a millisecond."""
        return len(self._repository.all()) > _MANY

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[Snapshot]:
        """Return the counters of a version, of all versions of a model, or of all models.

        Raises ServerError INVALID_ARG if the model or version is not loaded.
        """
        self.check_ready()
        if not name:
            loaded = self._repository.all()
            if loaded and loaded[0].namespace:
                # As in Triton, which looks up each model without its namespace.
                raise invalid_arg(f"Request for unknown model: '{loaded[0].id}' is not found")
            return [served.statistics.snapshot() for served in loaded]
        loaded = self._repository.versions(name)
        if not loaded:
            raise invalid_arg(f"requested model '{name}' is not available")
        if version != LATEST:
            loaded = [served for served in loaded if served.version == version]
            if not loaded:
                raise invalid_arg(f"requested model version is not available for model '{name}'")
        return [served.statistics.snapshot() for served in loaded]


def _trace_mode(options: TraceOptions, clock: Clock) -> TraceMode:
    if options.opentelemetry is None:
        return FileMode(options.file, clock)
    return SpanMode(options.opentelemetry, SpanExporter(options.opentelemetry), clock)


def new_registry() -> MetricRegistry:
    """Make a registry with the families of the server, which models then cannot redefine."""
    return MetricRegistry(
        (
            *MODEL_FAMILIES,
            *NEWER_FAMILIES,
            *HOST_FAMILIES,
            *CACHE_FAMILIES,
            *OPERATORS_FAMILIES,
            SPANS,
        )
    )


class MetricsGateway:
    """The metrics that the metrics port serves. Any thread, one at a time.

    `own` returns the series that this server has and Triton lacks.
    """

    def __init__(
        self,
        repository: Repository,
        registry: MetricRegistry,
        host: HostMetrics,
        latencies: LatencyMetrics | None = None,
        cache: ResponseCache | None = None,
        profile: TritonProfile = V2_51,
        own: Callable[[], Mapping[str, Sequence[Sample]]] = dict,
    ) -> None:
        # With the profile 2.51, the page has only Triton's series.
        self._own = own if profile.newer_metrics else dict
        self._newer_metrics = profile.newer_metrics
        self._repository = repository
        self._registry = registry
        self._host = host
        self._latencies = latencies or LatencyMetrics()
        self._cache = cache

    def families(self) -> list[Family]:
        """Return the current metrics of models and machine, and the metrics that models define."""
        readings = map(self._reading, self._repository.all())
        counters = self._latencies.counters
        cache = {} if self._cache is None else cache_samples(self._cache.reading())
        return self._registry.read(
            {
                **model_samples(readings, counters=counters),
                **self._host.samples(),
                **cache,
                **self._own(),
            }
        )

    def _reading(self, served: ServedModel) -> ModelReading:
        firsts = served.first_responses
        return ModelReading(
            served.statistics.snapshot(),
            served.scheduler.pending,
            served.config.metric_tags,
            served.config.caches_responses,
            served.statistics.summaries(),
            served.load_ns / _NS_PER_S if self._newer_metrics else None,
            None if firsts is None else firsts.read(),
            served.namespace,
        )
