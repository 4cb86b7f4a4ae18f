"""The server's settings: frozen, set once from the command line, under Triton's names."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reference_server.core.backlog import half_of_memory
from reference_server.core.profiles import NEWEST, TritonProfile

#: The directory of backends in Triton's containers.
BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")


#: The setting of `--backend-config` with the default `max_batch_size` of completed models.
MAX_BATCH_SIZE = "default-max-batch-size"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Log levels and destination; without `file`, stderr or stdout."""

    verbose_level: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    iso8601: bool = False
    file: str = ""


@dataclass(frozen=True, slots=True)
class OpenTelemetryOptions:
    """The export of spans, by OTLP over HTTP.

    `resource` has the attributes of the server. A batch is sent every `schedule_delay_ms`, or as
    soon as `max_export_batch_size` spans wait. At most `max_queue_size` spans wait; further ones
    are lost. `given` are the settings as given on the command line, in their order.
    """

    url: str = "http://localhost:4318/v1/traces"
    resource: Mapping[str, str] = field(default_factory=dict)
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512
    given: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The trace settings at start. Without a `file`, traces cannot be written.

    `levels` may contain TIMESTAMPS and TENSORS. Every `rate`-th request is traced, at most `count`
    requests (-1: no limit). Each file gets `log_frequency` traces (0: one file for all). With
    `opentelemetry`, traces are exported as spans and no file is written.
    """

    file: str = ""
    levels: frozenset[str] = frozenset()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    opentelemetry: OpenTelemetryOptions | None = None


class ControlMode(enum.Enum):
    """The trigger of loads after the start: none, changed files, or requests of clients."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


#: The groups of operations that can be restricted.
API_CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A header (gRPC: metadata) that a request must have: `key` with the value `value`."""

    key: str
    value: str


def parse_restrictions(option: str, what: str, values: Sequence[str]) -> dict[str, Restriction]:
    """Parse values of the form `<category>,...:<key>=<value>`.

    Args:
        option: the option's name, for error texts.
        what: `api` or `protocol`, for error texts.
        values: the values of the option.

    Returns:
        The required header by category.

    Raises:
        ValueError: a value is malformed, or names an unknown or repeated category.
    """
    restricted: dict[str, Restriction] = {}
    for value in values:
        categories, _, demand = value.partition(":")
        key, _, secret = demand.partition("=")
        if not (categories and key and secret):
            raise ValueError(
                f"{option} option format is '<config name>:<setting>=<value>'. Got {value}"
            )
        for category in categories.split(","):
            if category not in API_CATEGORIES:
                raise ValueError(f"unknown restricted {what} '{category}'")
            if category in restricted:
                raise ValueError(
                    f"restricted {what} '{category}' can not be specified in multiple config groups"
                )
            restricted[category] = Restriction(key, secret)
    return restricted


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits for clients of all ports, in seconds; 0 is no limit.

    Attributes:
        idle_s: for a connection without a request.
        head_s: for the TLS handshake, the HTTP/2 preface, or a request's head.
        body_s: for a body that is slower than 1 KiB per second.
        unread_s: for a client that reads nothing of its replies.
    """

    idle_s: float = 3600.0
    head_s: float = 120.0
    body_s: float = 120.0
    unread_s: float = 60.0


#: The default limit of open connections per port.
MOST_CONNECTIONS = 8192


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The HTTP frontend. `reuse_port` sets SO_REUSEPORT.

    `restricted` maps a category to its required header. Headers whose names match `forwarded`
    become parameters of inference requests; with an empty pattern, none do. `max_input_bytes`
    limits JSON and raw bodies, before and after decompression; None is no limit. With `page`,
    `/try` serves a form for requests.
    """

    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False
    restricted: Mapping[str, Restriction] = field(default_factory=dict)
    forwarded: str = ""
    max_input_bytes: int | None = NEWEST.http_max_input_size
    page: bool = True


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The web pages that may send requests, at the ports of HTTP and metrics.

    `allowed_hosts` has the server's names that are not local, and the hosts of accepted pages. With
    `allow_cross_site`, pages of all sites may send requests, as in Triton.
    """

    allowed_hosts: tuple[str, ...] = ()
    allow_cross_site: bool = False


class Compression(enum.IntEnum):
    """The compression level of responses, for clients that accept compression."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The PEM files of a port that uses TLS.

    With `demands_client_certificate`, clients need a certificate that is signed by a certificate in
    `root`.
    """

    certificate: str
    key: str
    root: str = ""
    demands_client_certificate: bool = False


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The gRPC frontend. Fields that are named like gRPC channel arguments have their meaning.

    An age of 0 is no limit. Metadata whose names match `forwarded` become parameters of inference
    requests; with an empty pattern, none do. Without `tls`, connections are plaintext. At most
    `max_response_pool_size` responses of decoupled models are queued for a stream's client.
    """

    address: str = "0.0.0.0"
    port: int = 8001
    reuse_port: bool = False
    compression: Compression = Compression.NONE
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    restricted: Mapping[str, Restriction] = field(default_factory=dict)
    forwarded: str = ""
    tls: TlsOptions | None = None
    max_response_pool_size: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a summary, from 0 to 1, with the allowed error of its rank."""

    quantile: float
    error: float


DEFAULT_QUANTILES = (
    Quantile(0.5, 0.05),
    Quantile(0.9, 0.01),
    Quantile(0.95, 0.001),
    Quantile(0.99, 0.001),
    Quantile(0.999, 0.001),
)


@dataclass(frozen=True, slots=True)
class LatencyMetrics:
    """The forms in which latencies of models are reported. There may be none."""

    counters: bool = True
    summaries: bool = False
    histograms: bool = False
    quantiles: tuple[Quantile, ...] = DEFAULT_QUANTILES


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The metrics port. The machine's gauges are updated at most every `interval_ms`.

    With `cpu`, there are gauges of CPU and memory. With `page`, `/` serves the live page; with
    `page_log`, the page shows the log's last lines.
    """

    address: str = "0.0.0.0"
    port: int = 8002
    interval_ms: int = 2000
    cpu: bool = True
    latencies: LatencyMetrics = field(default_factory=LatencyMetrics)
    page: bool = True
    page_log: bool = False


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Rate limiting. `limits` has each resource's amount; None: the largest that an instance needs.

    A key is the resource's name, and whether it belongs to the server (True) or to each device.
    """

    limits: Mapping[tuple[str, bool], int] | None = None


#: The only device of this server.
_DEVICE = 0


def parse_resources(values: Sequence[str]) -> dict[tuple[str, bool], int] | None:
    """Parse values of the form `<name>:<count>[:<device>]`.

    A limit without a device applies to the server and to the device. If a resource has several
    limits, the largest applies.

    Returns:
        The limits, see `RateLimit`; None if there are none.

    Raises:
        ValueError: a value is malformed.
    """
    limits: dict[tuple[str, bool], int] = {}
    for value in values:
        name, *numbers = value.split(":")
        try:
            count, *device = map(int, numbers)
        except ValueError:
            device, count = [0, 0], 0
        if len(device) > 1:
            raise ValueError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                f"'<resource_name>:<count>'. Got {value}"
            )
        scopes = (True, False) if device in ([], [_DEVICE]) else (True,)
        for is_global in scopes:
            limits[name, is_global] = max(count, limits.get((name, is_global), 0))
    return limits or None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """All settings that are needed to build a server.

    Attributes:
        startup_models: models to load at start in mode EXPLICIT; a single `*` is all models.
        most_request_bytes: memory limit for all in-flight large requests; 0 is no limit.
        response_cache_bytes: the size of the response cache; None is no cache.
        python_backend: settings of the backend that runs `model.py`, as given. As in Triton, the
            first load reports their errors.
        max_batch_sizes: default maximum batch sizes by backend, as given; "" is for all other
            backends.
        stub_models: functions (MODULE:FUNCTION) that replace models, by the name of the model.
        backend_directory: the folder of Python-based backends, each a folder with a `model.py`.
        model_config_name: a model's `configs/<model_config_name>.pbtxt` replaces its config.pbtxt.
        model_namespacing: models of different repositories may have the same name.
        file_override: load requests may contain files.
        outside_links: a model's files may be links to places outside its folder.
        execution_warning_s: longer executions of inline models are logged; 0 is never.
        client_shared_memory: clients may register shared memory.
        profile: the tritonserver release to emulate.
        strict_portable: refuse what does not work on tritonserver 2.51.
    """

    model_repositories: tuple[Path, ...]
    server_id: str = "triton"
    http: HttpOptions | None = field(default_factory=HttpOptions)
    grpc: GrpcOptions | None = field(default_factory=GrpcOptions)
    metrics: MetricsOptions | None = field(default_factory=MetricsOptions)
    web: WebOptions = field(default_factory=WebOptions)
    time_limits: TimeLimits = field(default_factory=TimeLimits)
    most_connections: int = MOST_CONNECTIONS
    most_request_bytes: int = field(default_factory=half_of_memory)
    log: LogOptions = field(default_factory=LogOptions)
    trace: TraceOptions = field(default_factory=TraceOptions)
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete_config: bool = True
    control_mode: ControlMode = ControlMode.NONE
    startup_models: tuple[str, ...] = ()
    poll_s: int = 15
    model_load_threads: int = 4
    model_load_retries: int = 0
    rate_limit: RateLimit | None = None
    exit_timeout_s: float = 30.0
    exit_closes_idle: bool = False
    response_cache_bytes: int | None = None
    python_backend: Mapping[str, str] = field(default_factory=dict)
    max_batch_sizes: Mapping[str, str] = field(default_factory=dict)
    stub_models: Mapping[str, str] = field(default_factory=dict)
    backend_directory: Path = BACKEND_DIRECTORY
    model_config_name: str = ""
    model_namespacing: bool = False
    file_override: bool = True
    outside_links: bool = True
    execution_warning_s: float = 10.0
    client_shared_memory: bool = NEWEST.client_shared_memory
    profile: TritonProfile = NEWEST
    strict_portable: bool = False
