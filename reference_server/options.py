"""The server's settings: frozen, read once from the command line, under Triton's names."""

from __future__ import annotations

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
class HttpOptions:
    """The HTTP front: where it listens, whether the port may be shared (SO_REUSEPORT)."""

    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False


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
    """Everything that the composition root needs to build a server."""

    model_repositories: tuple[Path, ...]
    server_id: str = "triton"
    http: HttpOptions | None = field(default_factory=HttpOptions)
    metrics: MetricsOptions | None = field(default_factory=MetricsOptions)
    log: LogOptions = field(default_factory=LogOptions)
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete_config: bool = True
    model_load_threads: int = 4
    exit_timeout_s: float = 30.0
