"""Health, metadata, configuration, statistics and metrics. Any thread may call all of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

from reference_server.core.backlog import Backlogs
from reference_server.core.errors import invalid_arg, unavailable
from reference_server.core.health import Probe
from reference_server.core.metadata import ModelMetadata, ServerMetadata
from reference_server.core.ports import Clock
from reference_server.core.profiles import V2_51, TritonProfile
from reference_server.core.request import LATEST
from reference_server.core.telemetry import Family, Sample, Snapshot
from reference_server.gateway.log_and_trace_settings import LogSettings, TraceSettings
from reference_server.observability import logs
from reference_server.observability.incidents import OPERATORS_FAMILIES
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.observability.otlp import SPANS, SpanExporter
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
from reference_server.observability.spans import SpanMode
from reference_server.observability.tracing import FileMode
from reference_server.options import LatencyMetrics, ServerOptions, TraceOptions
from reference_server.repository.manager import Repository
from reference_server.repository.versions import ServedModel
from reference_server.scheduling.response_cache import ResponseCache

_NS_PER_S = 1_000_000_000
#: The protocol extensions that this server speaks, as its metadata reports them.
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
    """The life of a server, from when its ports are open. What clients can ask depends on it."""

    #: The repository could not be read, and the server was told to go on.
    FAILED = "failed"
    READY = "ready"
    #: No new requests are taken, the models are unloaded.
    STOPPING = "stopping"

    def check_live(self) -> None:
        """Raise ServerError if the health of the server is not told any more."""
        if self is ServerState.STOPPING:
            raise unavailable("Server exiting")

    def check_ready(self) -> None:
        """Raise ServerError if nothing is told of models, and nothing loaded."""
        if self is not ServerState.READY:
            raise unavailable("Server not ready")


#: Models of which all is told at once: a millisecond's work.
_MANY = 16


class Gateway:
    """What a client can ask of the server.

    `logging` and `tracing` are the settings that it can change, `backlogs` what waits for clients.
    Reading what is told of models
    raises ServerError UNAVAILABLE while the server is not ready.
    """

    def __init__(self, repository: Repository, options: ServerOptions, clock: Clock) -> None:
        self._repository = repository
        #: The loaded model of a name, and of a version or LATEST. Raises ServerError NOT_FOUND.
        # Bound as it is: every request asks it, and nothing is added here.
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
        """The server goes on without models."""
        self._state = ServerState.FAILED
        self.find = self._refuse

    def stopping(self) -> None:
        """The server takes no new requests, which the models themselves refuse."""
        self._state = ServerState.STOPPING
        self.backlogs.lift()  # or a model would wait for a client that does not read

    def _refuse(self, name: str, version: int = LATEST) -> ServedModel:
        self.check_ready()
        return self._repository.find(name, version)

    def check_ready(self) -> None:
        """Raise ServerError UNAVAILABLE if nothing is told of models now, and none is loaded."""
        self._state.check_ready()

    def live(self) -> bool:
        """True unless the server has no repository. Raises ServerError UNAVAILABLE in the end."""
        self._state.check_live()
        return self._state is ServerState.READY

    def ready(self) -> Sequence[Probe] | None:
        """None if models cannot be asked; with strict readiness, if one of them did not load.

        Otherwise the probes that models still have to pass; mostly there are none. Raises
        ServerError UNAVAILABLE in the end.
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
        """Name, version and extensions."""
        return self._metadata

    def model_ready(self, name: str, version: int = LATEST) -> Sequence[Probe] | None:
        """None if that version, or the latest, is not loaded and well.

        If it is, the probes that the model itself has to pass; mostly there are none. Raises
        ServerError NOT_FOUND where it is an error to ask of what is not loaded.
        """
        self.check_ready()
        if self._options.profile.newer_readiness:
            health = self.find(name, version).health
            return None if health.own_reason else health.own_probes
        versions = self._repository.versions(name)
        if version != LATEST:
            versions = [served for served in versions if served.version == version]
        if not versions or versions[-1].health.reason:
            return None
        return ()

    def _is_loaded(self, name: str) -> bool:
        self.check_ready()
        return bool(self._repository.versions(name))

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """Versions, platform and tensors. Raises ServerError NOT_FOUND."""
        self.check_ready()
        served = self.find(name, version)
        versions = (
            [loaded.version for loaded in self._repository.versions(name)]
            if version == LATEST
            else [version]
        )
        return ModelMetadata(served.config.signature, tuple(versions), served.config.shown_platform)

    def model_config(self, name: str, version: int = LATEST) -> str:
        """The completed configuration as JSON. Raises ServerError NOT_FOUND."""
        return self.find(name, version).config.json

    def has_many(self) -> bool:
        """Whether what is told of all models takes long."""
        return len(self._repository.all()) > _MANY

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[Snapshot]:
        """The counters of a version, of all versions of a model, or of all models.

        Raises ServerError INVALID_ARG if what is named is not loaded.
        """
        self.check_ready()
        if not name:
            loaded = self._repository.all()
            if loaded and loaded[0].namespace:
                # As in Triton, which asks for each model without its namespace.
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
    """A registry that knows the server's own families, so that no model's can contradict them."""
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
    """What a client can ask of the metrics port. Not thread-safe.

    `own` gives the series that are of this server alone.
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
        # A page of 2.51 is that of 2.51, to the last line.
        self._own = own if profile.newer_metrics else dict
        self._newer_metrics = profile.newer_metrics
        self._repository = repository
        self._registry = registry
        self._host = host
        self._latencies = latencies or LatencyMetrics()
        self._cache = cache

    def families(self) -> list[Family]:
        """All metrics as they are now: those of the models, the machine, and the models' own."""
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
