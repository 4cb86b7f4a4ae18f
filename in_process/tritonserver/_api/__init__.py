"""Servers in this process, their options, and custom metrics."""

from __future__ import annotations

import math
import threading
import time
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from reference_server.codecs import management_json
from reference_server.command import values
from reference_server.core import telemetry
from reference_server.core.profiles import NEWEST
from reference_server.gateway.gateway import new_registry
from reference_server.options import (
    ControlMode,
    LogOptions,
    MetricsOptions,
    RateLimit,
    ServerOptions,
    parse_resources,
)
from tritonserver._api._engine import Engine, LogCallback, Running
from tritonserver._api._response import Model, decoded
from tritonserver._c import (
    InstanceGroupKind,
    InternalError,
    InvalidArgumentError,
    LogFormat,
    MetricFormat,
    MetricKind,
    ModelControlMode,
    RateLimitMode,
    UnavailableError,
    UnsupportedError,
    check_type,
    check_unsigned,
    raising,
)

#: The Triton release that servers behave like.
PROFILE = NEWEST
#: The families of all servers in this process, and of `MetricFamily`.
_REGISTRY = new_registry()

Uint = Annotated[int, 32]
Uint64 = Annotated[int, 64]


@dataclass(slots=True)
class RateLimiterResource:
    """A resource of the rate limiter: its name, the available amount, and the device's number."""

    name: str
    count: Uint
    device: Uint


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """The share of a device's memory that loaded models may use. No effect in this server."""

    kind: InstanceGroupKind
    device: Uint
    fraction: float


@dataclass(slots=True)
class Options:
    """The options of a server, with the meaning of tritonserver's options of similar names.

    Options of GPUs, buffers, host policies and repository agents are checked, and have no effect. A
    log level includes the more severe levels. All servers of the process share the log: the options
    of the server that started last apply.

    Attributes:
        model_repository: the model repository, or a list of repositories.
        cache_config: settings by cache, such as `{"local": {"size": 1048576}}`.
        exit_timeout: time limit of `Server.stop`, in seconds.
        log_file: the log's file; by default stdout and stderr.
        backend_configuration: settings by backend, such as `{"python": {"host": "process"}}`. The
            backend "" is for all backends.
        metrics_configuration: settings such as `{"": {"summary_latencies": "true"}}`.
        log_callback: receives the log's records instead of file and streams, on any thread and
            without a lock. Its exceptions are printed and suppressed.
    """

    model_repository: str | list[str] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False
    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)
    pinned_memory_pool_size: Uint64 = 1 << 28
    cuda_memory_pool_sizes: dict[int, Uint64] = field(default_factory=dict)
    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = values.CACHE_DIRECTORY
    min_supported_compute_capability: float = 6.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: Uint = 30
    buffer_manager_thread_count: Uint = 0
    model_load_thread_count: Uint = 4
    model_load_retry_count: Uint = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True
    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: Uint = 0
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: Uint64 = 2000
    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    log_callback: LogCallback | None = None

    def _for_core(self) -> ServerOptions:
        """Return the options in the server's form. Raises InvalidArgumentError and TypeError."""
        if self.model_repository is None:
            raise InvalidArgumentError("Model repository must be specified.")
        hints = typing.get_type_hints(type(self), include_extras=True)
        for option in fields(self):
            _check(option.name, getattr(self, option.name), hints[option.name])
        given = self.model_repository
        repositories = [given] if isinstance(given, str) else given
        if not repositories:
            raise InvalidArgumentError("--model-repository must be specified")
        resources = [
            f"{each.name}:{each.count}:{each.device}" for each in self.rate_limiter_resources
        ]
        limited = self.rate_limiter_mode is RateLimitMode.EXEC_COUNT
        backends = list(_settings(self.backend_configuration))
        with raising():
            cache_bytes = values.cache_byte_size(
                list(_settings(self.cache_config)), self.cache_directory
            )
        return ServerOptions(
            model_repositories=tuple(map(Path, repositories)),
            server_id=self.server_id,
            http=None,
            grpc=None,
            metrics=MetricsOptions(
                interval_ms=self.metrics_interval,
                cpu=self.metrics and self.cpu_metrics,
                page=False,  # a frontend sets it for its port
                latencies=values.latency_metrics(
                    [(name, value) for _, name, value in _settings(self.metrics_configuration)]
                ),
            ),
            log=self._log_options(),
            exit_on_error=self.exit_on_error,
            strict_readiness=self.strict_readiness,
            auto_complete_config=not self.strict_model_config,
            control_mode=ControlMode[self.model_control_mode.name],
            startup_models=tuple(dict.fromkeys(self.startup_models)),
            model_load_threads=max(1, self.model_load_thread_count),
            model_load_retries=self.model_load_retry_count,
            rate_limit=RateLimit(parse_resources(resources)) if limited else None,
            exit_timeout_s=float(self.exit_timeout),
            exit_closes_idle=True,
            response_cache_bytes=cache_bytes,
            python_backend=values.python_backend(backends),
            max_batch_sizes=values.max_batch_sizes(backends),
            backend_directory=Path(self.backend_directory),
            model_namespacing=self.model_namespacing,
            profile=PROFILE,
        )

    def _log_options(self) -> LogOptions:
        """Return the log's options. As in Triton's package, a level includes more severe levels."""
        info = self.log_info or self.log_verbose > 0
        warning = self.log_warn or info
        return LogOptions(
            *(self.log_verbose, info, warning, self.log_error or warning),
            self.log_format is LogFormat.ISO8601,
            self.log_file or "",
        )


def _settings(given: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for name, settings in given.items():
        for setting, value in settings.items():
            yield name, setting, str(value)


def _check(name: str, value: Any, hint: Any) -> None:  # noqa: ANN401 - any value and annotation
    """Raise TypeError unless an option's value fits its annotation."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        check_unsigned(name, value, parts[1])
    elif origin in (list, dict):
        check_type(name, value, origin)
        for each in value:
            _check(f"element of {name}", each, parts[0])
        for each in value.values() if origin is dict else ():
            _check(f"value of {name}", each, parts[1])
    elif name == "log_callback":
        if value is not None and not callable(value):
            raise TypeError(f"{name}: found {value!r}; expected a function or None")
    elif list[str] in parts and isinstance(value, list):
        _check(name, value, list[str])
    elif hint is not Any:
        types = [part for part in parts or (hint,) if typing.get_origin(part) is None]
        # As in Triton's package, numbers are accepted for switches and integers for floats.
        check_type(name, value, *types, *([int] if hint in (bool, float) else []))


class ModelDictionary(dict[tuple[str, int], Model]):
    """Models by name and version. A name without a version gives the latest version."""

    def __init__(self, server: Server, models: list[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server

    def __getitem__(self, key: tuple[str, int] | str) -> Model:
        """Return a model. Raises KeyError if the repository has no such model."""
        found = self.get(key) if isinstance(key, tuple) else None
        if found is None and isinstance(key, str) and any(name == key for name, _ in self):
            found = Model(self._server, key)
        if found is None:
            raise KeyError(f"Unknown Model: {key}")
        return found


class Server:
    """A server in this process. Thread-safe.

    Several servers can run at the same time. A server that is not stopped runs until this object
    and all its models are garbage-collected, or the process exits. Models are not finalized at
    exit. A forked process cannot use the servers of its parent.

    Args:
        options: the options.
        **kwargs: fields of `Options`, if `options` is None.

    Raises:
        TypeError: `kwargs` has an unknown field.
    """

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - fields
        self.options = Options(**kwargs) if options is None else options
        self._lock = threading.RLock()  # a signal handler may stop the server
        self._started: Engine | None = None

    @property
    def _engine(self) -> Engine:
        if self._started is None:
            raise InvalidArgumentError("Server not started")
        return self._started

    def start(
        self,
        wait_until_ready: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> Server:
        """Load the models and start the server. Blocks.

        Args:
            wait_until_ready: also wait until `ready` returns True.
            polling_interval: seconds between calls of `ready`.
            timeout: time limit of this wait in seconds; None: no limit.

        Returns:
            This server.

        Raises:
            InvalidArgumentError: the server is started, or an option is invalid.
            TypeError: an option has the wrong type.
            InternalError: the repository cannot be read, or, with `exit_on_error`, a model failed.
            UnavailableError: the server was not ready in time.
        """
        with self._lock:
            if self._started is not None:
                raise InvalidArgumentError("Server already started")
            options = self.options._for_core()
            self._started = Engine(Running(options, self.options.log_callback, _REGISTRY))
        if wait_until_ready and not _wait_until(self.ready, polling_interval, timeout):
            raise UnavailableError("Timeout before ready")
        return self

    def stop(self) -> None:
        """Finish the accepted requests, unload the models, and end the server. Blocks.

        Raises:
            InvalidArgumentError: the server is not started.
            InternalError: requests or models were left after `exit_timeout`. The server has stopped
                nevertheless, and the iterators of these requests end with an error.
            UnavailableError: see `Engine.core`.
        """
        self._engine.running.check()
        with self._lock:
            engine, self._started = self._engine, None
        engine.running.stop()

    def unregister_model_repository(self, repository_path: str) -> None:
        """Raise UnsupportedError: this server has the repositories of its options."""
        raise UnsupportedError(
            f"model repository '{repository_path}': found a change of a started server; expected "
            "none. Set Options.model_repository before the start"
        )

    def register_model_repository(
        self, repository_path: str, name_mapping: dict[str, str] | None = None
    ) -> None:
        """Raise UnsupportedError: this server has the repositories of its options."""
        self.unregister_model_repository(repository_path)

    def poll_model_repository(self) -> None:
        """Load new and changed models, in mode POLL. Raises UnavailableError in other modes."""
        core = self._engine.core
        if self.options.model_control_mode is not ModelControlMode.POLL:
            raise UnavailableError("polling is disabled")
        with raising():
            core.repository.load_all()

    def metadata(self) -> dict[str, Any]:
        """Return name, version and extensions of the server. Raises TritonError."""
        metadata = self._engine.core.gateway.server_metadata()
        return decoded(management_json.server_metadata(metadata))

    def live(self) -> bool:
        """Return True if the server has read its repositories. Raises TritonError."""
        with raising():
            return self._engine.core.gateway.live()

    def ready(self) -> bool:
        """Return True if the server can answer requests. Raises TritonError."""
        with raising():
            probes = self._engine.core.gateway.ready()
        return probes is not None and all(probe() for probe in probes)

    def model(self, model_name: str, model_version: int = -1) -> Model:
        """Return a model, which need not be loaded yet. Raises InvalidArgumentError.

        Args:
            model_name: the model's name.
            model_version: the version; -1 is the latest loaded version.
        """
        return Model(self, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """Return all versions of all models in the repositories, with their states.

        Args:
            exclude_not_ready: leave out versions that are not ready.

        Raises:
            TritonError: the server is not started or not ready.
        """
        with raising():
            entries = self._engine.core.control.index(ready_only=exclude_not_ready)
        rows = (entry.fields for entry in entries)
        models = [
            Model(self, name, -1 if version is None else version, state, reason or None)
            for name, version, state, reason in rows
        ]
        return ModelDictionary(self, models)

    def load(
        self, model_name: str, parameters: Mapping[str, str | int | bool | bytes] | None = None
    ) -> Model:
        """Load a model, or reload it if it has changed, in mode EXPLICIT. Blocks.

        Args:
            model_name: the model's name.
            parameters: `config`, a configuration as JSON, and `file:<path>`, the content of a file.
                With files, the model consists only of these files.

        Returns:
            The model.

        Raises:
            TritonError: the model cannot be loaded.
            TypeError: a name or parameter has the wrong type.
        """
        core = self._engine.core
        check_type("model_name", model_name, str)
        given = dict(parameters or {})
        for name, value in given.items():
            check_type("name of a parameter", name, str)
            check_type(f"parameter '{name}'", value, str, int, bool, bytes)
            if not isinstance(value, str if name == "config" else bytes) or not (
                name == "config" or name.startswith("file:")
            ):
                raise InternalError(
                    f"failed to load '{model_name}', failed to poll from model repository"
                )
        with raising():
            core.control.load(model_name, given)
        return self.model(model_name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Unload a model, in mode EXPLICIT. Requests in flight are answered first.

        Args:
            model: the model or its name. A model that is not loaded is no error.
            unload_dependents: also unload the models of an ensemble.
            wait_until_unloaded: wait until all versions are unloaded.
            polling_interval: seconds between checks of the states.
            timeout: time limit of this wait in seconds; None: no limit.

        Raises:
            TritonError: the operation is not possible.
        """
        name = model if isinstance(model, str) else model.name
        with raising():
            self._engine.core.control.unload(name, unload_dependents=unload_dependents)

        def is_unloaded() -> bool:
            own = [each for each in self.models().values() if each.name == name]
            return all(each.state in (None, "UNAVAILABLE") for each in own)

        if wait_until_unloaded:
            _wait_until(is_unloaded, polling_interval, timeout)

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """Return the metrics of the server, of models, and of `Metric`.

        Raises:
            InvalidArgumentError: the server is not started.
            TypeError: `metric_format` is no MetricFormat.
        """
        check_type("metric_format", metric_format, MetricFormat)
        return self._engine.running.metrics_page()


def _wait_until(condition: Callable[[], bool], interval_s: float, timeout_s: float | None) -> bool:
    """Call `condition` until it returns True. Return False if the time limit is reached first."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


class MetricFamily:
    """A family of custom metrics, which all servers of this process report.

    Args:
        kind: the type.
        name: the name in the metrics.
        description: the help text.

    Raises:
        InvalidArgumentError: the name is invalid, or belongs to a family of another type.
        TypeError: an argument has the wrong type.
    """

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        check_type("kind", kind, MetricKind)
        check_type("name", name, str)
        check_type("description", description, str)
        with raising():
            self._hold = _REGISTRY.hold(name, description, telemetry.MetricKind[kind.name])
        weakref.finalize(self, self._hold.release).atexit = False


class Metric:
    """One custom metric of a family. Thread-safe.

    Args:
        family: the family.
        labels: labels by name, which distinguish the metrics of a family.

    Raises:
        InvalidArgumentError: a label has an invalid name or is no string.
        TypeError: `family` is no MetricFamily.
    """

    def __init__(self, family: MetricFamily, labels: dict[str, str] | None = None) -> None:
        check_type("family", family, MetricFamily)
        given = labels or {}
        if not all(isinstance(text, str) for pair in given.items() for text in pair):
            raise InvalidArgumentError(f"labels: found {given}; expected strings by name")
        self._family = family  # releases the metric when it is freed
        with raising():
            self._series = family._hold.series(given)

    @property
    def value(self) -> float:
        """The current value."""
        return self._series.value()

    @property
    def kind(self) -> MetricKind:
        """The type."""
        return MetricKind[self._series.kind.name]

    def increment(self, value: float) -> None:
        """Add `value`. Raises InvalidArgumentError if a counter would decrease."""
        with raising():
            self._series.increment(float(value))

    def set_value(self, value: float) -> None:
        """Set the value. Raises UnsupportedError for a counter."""
        with raising():
            self._series.set(float(value))
