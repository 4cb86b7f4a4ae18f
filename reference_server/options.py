"""The server's settings: frozen, read once from the command line, under Triton's names."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reference_server.core.intake import half_of_memory
from reference_server.core.profiles import NEWEST, TritonProfile

#: Where Triton's containers have their backends.
BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")


#: What `--backend-config` may tell backends that complete configurations.
MAX_BATCH_SIZE = "default-max-batch-size"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is logged and where; an empty `file` is stderr."""

    verbose_level: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    iso8601: bool = False
    file: str = ""


@dataclass(frozen=True, slots=True)
class OpenTelemetryOptions:
    """Where spans are sent, by OTLP over HTTP, and how many wait for that.

    `resource` are attributes of this server. A batch of at most `max_export_batch_size` spans is
    sent every `schedule_delay_ms`, and before if there are so many; `max_queue_size` wait at most.
    `told` are the settings as they were given, in their order.
    """

    url: str = "http://localhost:4318/v1/traces"
    resource: Mapping[str, str] = field(default_factory=dict)
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512
    told: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What is traced at start and where it is written; without a `file` nothing can be.

    `levels` are TIMESTAMPS and TENSORS, every `rate`-th request is traced, `count` of them
    (-1: any number). `log_frequency` traces go into one file; 0: all into the same. With
    `opentelemetry` traces are spans that are sent away, and no file is written.
    """

    file: str = ""
    levels: frozenset[str] = frozenset()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    opentelemetry: OpenTelemetryOptions | None = None


class ControlMode(enum.Enum):
    """Who decides which models are loaded: the start alone, changes of the files, or clients."""

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
    """What a request must carry: the header (gRPC: the metadata) `key` with this `value`."""

    key: str
    value: str


def parse_restrictions(option: str, what: str, values: Sequence[str]) -> dict[str, Restriction]:
    """What `<category>,...:<key>=<value>` restricts, by category.

    `option` and `what` (`api` or `protocol`) are for the texts of the ValueError that is raised.
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
    """How long a client of any port may take, in seconds; 0 is for ever.

    `idle_s` without asking for anything; `head_s` for TLS, the beginning of HTTP/2, or a request's
    head; `body_s` without a kilobyte of a body for each second; `unread_s` without reading anything
    of what waits for it.
    """

    idle_s: float = 3600.0
    head_s: float = 120.0
    body_s: float = 120.0
    unread_s: float = 60.0


#: Connections that a port has at once, unless told otherwise.
MOST_CONNECTIONS = 8192


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The HTTP frontend: where it listens, whether the port may be shared (SO_REUSEPORT).

    `restricted` is by category. Headers whose names match `forwarded` become parameters of infer
    requests; if it is empty, none do. JSON, raw bodies, and what these and compressed ones become
    may have `max_input_bytes`; None is any number. With `page` people find a form at `/try`.
    """

    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False
    restricted: Mapping[str, Restriction] = field(default_factory=dict)
    forwarded: str = ""
    max_input_bytes: int | None = NEWEST.http_max_input_size
    page: bool = True


class Compression(enum.IntEnum):
    """How hard responses are compressed for clients that take it."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The files of a port that speaks TLS, in PEM.

    With `demands_client_certificate`, clients must show a certificate that one in `root` vouches
    for.
    """

    certificate: str
    key: str
    root: str = ""
    demands_client_certificate: bool = False


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The gRPC frontend: where it listens, and what the options of the same names tell gRPC.

    Ages of 0 are unlimited. Metadata whose names match `forwarded` become parameters of infer
    requests; if it is empty, none do. Without `tls` bytes go as they are. Of a stream's decoupled
    models `max_response_pool_size` responses may wait for the client.
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
    """One of a summary's quantiles, from 0 to 1, and how far off its rank may be."""

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
    """How the latencies of models are told: by `counters` of sums, by `summaries`, or not at all.

    `histograms` are of first responses.

    Without `counters`, the counts of requests stand still as well, as in Triton.
    """

    counters: bool = True
    summaries: bool = False
    histograms: bool = False
    quantiles: tuple[Quantile, ...] = DEFAULT_QUANTILES


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The metrics port: where it listens, and how old the machine's gauges may become.

    Without `cpu` there are no gauges of CPU and memory. With `page` people see the models at `/`,
    with `page_log` the log's last lines, too.
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
    """That instances share resources; `limits` are those told, or else what models need.

    A limit is for a resource's name, and whether it is the whole server's or a device's.
    """

    limits: Mapping[tuple[str, bool], int] | None = None


#: The one device that models run on here.
_DEVICE = 0


def parse_resources(values: Sequence[str]) -> dict[tuple[str, bool], int] | None:
    """The limits in `<name>:<count>[:<device>]`; None if there are none.

    What is for all devices is for the server, too, and of several for the same the largest counts.
    Raises ValueError.
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
    """Everything that the composition root needs to build a server.

    `startup_models` are loaded at the start in mode EXPLICIT; `*` alone is all of them. Without
    `response_cache_bytes` there is no response cache. `python_backend` are the settings of the
    backend that runs `model.py`, as they were given: Triton finds their faults at the first load.
    `max_batch_sizes` are backends' defaults, by name, as they were given; "" is for all others.
    `stub_models` are the functions, MODULE:FUNCTION, that stand in for models, by their names.
    Python-based backends are folders with a `model.py` in `backend_directory`. A model's
    `configs/<model_config_name>.pbtxt` is read in place of its config.pbtxt. Load requests may
    bring files with `file_override`. Models' files may be links out of their folders with
    `outside_links`. Long requests may hold `most_request_bytes` together; 0 is any number.
    Executions of inline models that take longer than `execution_warning_s` are told to the log,
    none of 0. Clients may register shared memory with `client_shared_memory`, and models of
    several repositories may have one name with `model_namespacing`. `profile` is the tritonserver
    to stand in for.
    """

    model_repositories: tuple[Path, ...]
    server_id: str = "triton"
    http: HttpOptions | None = field(default_factory=HttpOptions)
    grpc: GrpcOptions | None = field(default_factory=GrpcOptions)
    metrics: MetricsOptions | None = field(default_factory=MetricsOptions)
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
