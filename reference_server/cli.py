"""The command line, in Triton's spelling: arguments to ServerOptions, then run; exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

try:
    from uvloop import run as _run
except ImportError:  # no uvloop on this platform: the same server, slower
    from asyncio import run as _run

from reference_server.core.errors import ServerError
from reference_server.observability import logs
from reference_server.options import HttpOptions, LogOptions, MetricsOptions, ServerOptions
from reference_server.server import Server

#: Options of tritonserver that this server knows of, but does nothing about. They are accepted
#: with a warning where they only tune or switch off what is not there.
_WITHOUT_EFFECT = (
    "allow-grpc",
    "grpc-port",
    "grpc-address",
    "allow-gpu-metrics",
    "http-thread-count",
    "backend-directory",
    "cache-directory",
    "repoagent-directory",
    "pinned-memory-pool-byte-size",
    "cuda-memory-pool-byte-size",
)


class _Parser(argparse.ArgumentParser):
    """Reports a bad option as tritonserver does: usage, the reason, exit code 1."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"{message}\n")


def _boolean(text: str) -> bool:
    value = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(
        text.lower()
    )
    if value is None:
        raise argparse.ArgumentTypeError(f"invalid value for bool option: {text}")
    return value


def _within(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`."""

    def parse_number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"Invalid option value. Got {text}, expected {low} to {high}"
            )
        return int(text)

    return parse_number


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="reference_server",
        allow_abbrev=False,
        description="Serve a Triton model repository of Python models and ensembles.",
    )
    add = parser.add_argument
    add(
        "--model-repository",
        "--model-store",
        action="append",
        type=Path,
        metavar="DIR",
        help="a model repository; may be given several times (required)",
    )
    add("--id", default="triton", help="the server's name in its metadata (default: triton)")
    add("--allow-http", type=_boolean, default=True, metavar="BOOL", help="serve HTTP (true)")
    add("--http-address", default="0.0.0.0", metavar="ADDRESS", help="address of HTTP (0.0.0.0)")
    add(
        "--http-port",
        type=_within(1, 65535),
        default=8000,
        metavar="PORT",
        help="port of HTTP (8000)",
    )
    add(
        "--reuse-http-port",
        type=_boolean,
        default=False,
        metavar="BOOL",
        help="let several servers listen on the same HTTP port (false)",
    )
    add("--allow-metrics", type=_boolean, default=True, metavar="BOOL",
        help="serve metrics (true)")  # fmt: skip
    add("--metrics-address", metavar="ADDRESS", help="address of the metrics (that of HTTP)")
    add("--metrics-port", type=_within(1, 65535), default=8002, metavar="PORT",
        help="port of the metrics (8002)")  # fmt: skip
    add("--metrics-interval-ms", type=_within(0, 2**63 - 1), default=2000, metavar="MS",
        help="how old the machine's metrics may become (2000)")  # fmt: skip
    add("--allow-cpu-metrics", type=_boolean, default=True, metavar="BOOL",
        help="tell of CPU and memory in the metrics (true)")  # fmt: skip
    add("--exit-on-error", type=_boolean, default=True, metavar="BOOL",
        help="end when a model cannot be loaded at start (true)")  # fmt: skip
    add("--strict-readiness", type=_boolean, default=True, metavar="BOOL",
        help="be ready only if every model is (true)")  # fmt: skip
    add("--disable-auto-complete-config", action="store_true",
        help="do not ask models to complete their configuration")  # fmt: skip
    add("--model-load-thread-count", type=_within(1, 1024), default=4, metavar="N",
        help="models loaded side by side at start (4)")  # fmt: skip
    add("--exit-timeout-secs", type=float, default=30.0, metavar="SECONDS",
        help="how long requests in flight may take at exit (30)")  # fmt: skip
    add("--model-control-mode", choices=("none",), default="none", help="none: load all at start")
    add("--log-verbose", type=int, default=0, metavar="LEVEL", help="verbosity; 0 is off (0)")
    for level in ("info", "warning", "error"):
        add(f"--log-{level}", type=_boolean, default=True, metavar="BOOL",
            help=f"log at level {level} (true)")  # fmt: skip
    add("--log-format", choices=("default", "ISO8601"), default="default", help="of log lines")
    add("--log-file", default="", metavar="FILE", help="log here instead of stderr")
    for name in _WITHOUT_EFFECT:
        add(f"--{name}", metavar="VALUE", help=argparse.SUPPRESS)
    return parser


def parse(arguments: Sequence[str]) -> tuple[ServerOptions, list[str]]:
    """The settings in `arguments`, and the options given that have no effect here.

    Exits with code 1 on a bad option, as tritonserver does.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    ignored = [
        f"--{name}"
        for name in _WITHOUT_EFFECT
        if getattr(given, name.replace("-", "_")) is not None
    ]
    http = HttpOptions(given.http_address, given.http_port, given.reuse_http_port)
    metrics = MetricsOptions(
        given.http_address if given.metrics_address is None else given.metrics_address,
        given.metrics_port,
        given.metrics_interval_ms,
        given.allow_cpu_metrics,
    )
    if (
        given.allow_http
        and given.allow_metrics
        and (http.address, http.port) == (metrics.address, metrics.port)
    ):
        parser.error(
            "The server cannot listen to HTTP requests and metrics requests at the same address "
            f"and port {http.address}:{http.port}"
        )
    options = ServerOptions(
        model_repositories=tuple(given.model_repository or ()),
        server_id=given.id,
        http=http if given.allow_http else None,
        metrics=metrics if given.allow_metrics else None,
        log=LogOptions(
            given.log_verbose,
            given.log_info,
            given.log_warning,
            given.log_error,
            given.log_format == "ISO8601",
            given.log_file,
        ),
        exit_on_error=given.exit_on_error,
        strict_readiness=given.strict_readiness,
        auto_complete_config=not given.disable_auto_complete_config,
        model_load_threads=given.model_load_thread_count,
        exit_timeout_s=given.exit_timeout_secs,
    )
    return options, ignored


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; 0 after a clean stop, 1 if it could not start."""
    options, ignored = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        logs.configure(options.log)
    except OSError as error:
        return _failed(f"cannot log to '{options.log.file}': {error.strerror}")
    if ignored:
        logs.warn_ignored(ignored)
    if not options.model_repositories:
        return _failed("creating server: Invalid argument - --model-repository must be specified")
    try:
        _run(_serve(options))
    except ServerError as error:
        return _failed(f"creating server: {error.code.value} - {error.message}")
    return 0


async def _serve(options: ServerOptions) -> None:
    await Server(options).serve()


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1
