"""The server's settings: frozen, read once from the command line, under Triton's names."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


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
class TraceOptions:
    """What is traced at start and where it is written; without a `file` nothing can be.

    `levels` are TIMESTAMPS and TENSORS, every `rate`-th request is traced, `count` of them
    (-1: any number). `log_frequency` traces go into one file; 0: all into the same.
    """

    file: str = ""
    levels: frozenset[str] = frozenset()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


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
class HttpOptions:
    """The HTTP front: where it listens, whether the port may be shared (SO_REUSEPORT).

    `restricted` is by category. Headers whose names match `forwarded` become parameters of infer
    requests; if it is empty, none do. Bodies of more than `max_input_bytes` are refused.
    """

    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False
    restricted: Mapping[str, Restriction] = field(default_factory=dict)
    forwarded: str = ""
    max_input_bytes: int | None = None


class Compression(enum.IntEnum):
    """How hard responses are compressed for clients that take it."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The gRPC front: where it listens, and what the options of the same names tell gRPC.

    Ages of 0 are unlimited.
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


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The metrics port: where it listens, and how old the machine's gauges may become.

    Without `cpu` there are no gauges of CPU and memory.
    """

    address: str = "0.0.0.0"
    port: int = 8002
    interval_ms: int = 2000
    cpu: bool = True


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Everything that the composition root needs to build a server.

    `startup_models` are loaded at the start in mode EXPLICIT; `*` alone is all of them.
    """

    model_repositories: tuple[Path, ...]
    server_id: str = "triton"
    http: HttpOptions | None = field(default_factory=HttpOptions)
    grpc: GrpcOptions | None = field(default_factory=GrpcOptions)
    metrics: MetricsOptions | None = field(default_factory=MetricsOptions)
    log: LogOptions = field(default_factory=LogOptions)
    trace: TraceOptions = field(default_factory=TraceOptions)
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete_config: bool = True
    control_mode: ControlMode = ControlMode.NONE
    startup_models: tuple[str, ...] = ()
    poll_s: int = 15
    model_load_threads: int = 4
    exit_timeout_s: float = 30.0
