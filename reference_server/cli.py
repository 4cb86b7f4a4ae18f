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

from reference_server import trace_config
from reference_server.core.errors import ServerError
from reference_server.fronts.http.forwarding import HeaderForwarding
from reference_server.observability import logs
from reference_server.options import (
    Compression,
    ControlMode,
    GrpcOptions,
    HttpOptions,
    LogOptions,
    MetricsOptions,
    ServerOptions,
    parse_restrictions,
)
from reference_server.server import Server

#: Options of tritonserver that this server knows of, but does nothing about. They are accepted
#: with a warning where they only tune or switch off what is not there.
_WITHOUT_EFFECT = (
    "grpc-infer-allocation-pool-size",
    "allow-gpu-metrics",
    "http-thread-count",
    "backend-directory",
    "cache-directory",
    "repoagent-directory",
    "pinned-memory-pool-byte-size",
    "cuda-memory-pool-byte-size",
)
_WITHOUT_EFFECT_NUMBERS = {"http-thread-count", "grpc-infer-allocation-pool-size"}


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


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text}") from None


def _pattern(text: str) -> str:
    try:
        HeaderForwarding(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


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
    _add_grpc_options(add)
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
    _add_control_options(add)
    add("--http-max-input-size", type=_within(1, 2**63 - 1), metavar="BYTES",
        help="refuse larger request bodies (any size)")  # fmt: skip
    add("--http-header-forward-pattern", type=_pattern, default="", metavar="PATTERN",
        help="headers whose names match become parameters of infer requests")  # fmt: skip
    add("--log-verbose", type=int, default=0, metavar="LEVEL", help="verbosity; 0 is off (0)")
    for level in ("info", "warning", "error"):
        add(f"--log-{level}", type=_boolean, default=True, metavar="BOOL",
            help=f"log at level {level} (true)")  # fmt: skip
    add("--log-format", choices=("default", "ISO8601"), default="default", help="of log lines")
    add("--log-file", default="", metavar="FILE", help="log here instead of stderr")
    add("--trace-config", action="append", default=[], type=trace_config.setting,
        metavar="SETTING=VALUE", help="level=OFF|TIMESTAMPS|TENSORS, rate=N, count=N, "
        "triton,file=FILE or triton,log-frequency=N; may be given several times")  # fmt: skip
    for name in _WITHOUT_EFFECT:
        add(f"--{name}", metavar="VALUE", help=argparse.SUPPRESS,
            type=_number if name in _WITHOUT_EFFECT_NUMBERS else str)  # fmt: skip
    return parser


def _add_control_options(add: Callable[..., object]) -> None:
    add("--model-control-mode", type=str.lower, choices=[mode.value for mode in ControlMode],
        default="none", help="none: load all at start; poll: follow the files; "
        "explicit: load what clients ask for (none)")  # fmt: skip
    add("--load-model", action="append", default=[], metavar="NAME",
        help="load this model at the start, in mode explicit; * alone: all of them")  # fmt: skip
    add("--repository-poll-secs", type=_within(1, 2**31 - 1), default=15, metavar="SECONDS",
        help="how often the files are looked at in mode poll (15)")  # fmt: skip
    for option, front in (("http-restricted-api", "HTTP"), ("grpc-restricted-protocol", "gRPC")):
        add(f"--{option}", action="append", default=[], metavar="APIS:KEY=VALUE",
            help=f"demand this header of {front} requests of these categories")  # fmt: skip


def _add_grpc_options(add: Callable[..., object]) -> None:
    defaults = GrpcOptions()
    add("--allow-grpc", type=_boolean, default=True, metavar="BOOL", help="serve gRPC (true)")
    add("--grpc-address", default=defaults.address, metavar="ADDRESS",
        help="address of gRPC (0.0.0.0)")  # fmt: skip
    add("--grpc-port", type=_within(1, 65535), default=defaults.port, metavar="PORT",
        help="port of gRPC (8001)")  # fmt: skip
    add("--reuse-grpc-port", type=_boolean, default=False, metavar="BOOL",
        help="let several servers listen on the same gRPC port (false)")  # fmt: skip
    add("--grpc-infer-response-compression-level", default="none",
        choices=[level.name.lower() for level in Compression],
        help="how hard responses are compressed for clients that take it (none)")  # fmt: skip
    for name, default, meaning in (
        ("keepalive-time", defaults.keepalive_time_ms, "ms without traffic before a ping"),
        ("keepalive-timeout", defaults.keepalive_timeout_ms, "ms that a ping's answer may take"),
        ("http2-max-pings-without-data", defaults.max_pings_without_data,
         "pings sent while there is no data; 0 is any number"),
        ("http2-min-recv-ping-interval-without-data",
         defaults.min_recv_ping_interval_without_data_ms, "ms between a client's pings"),
        ("http2-max-ping-strikes", defaults.max_ping_strikes,
         "pings that may come too early; 0 is any number"),
        ("max-connection-age", 0, "ms that a connection may last; 0 is for ever"),
        ("max-connection-age-grace", 0, "ms that its last calls may take; 0 is for ever"),
    ):  # fmt: skip
        add(f"--grpc-{name}", type=_within(0, 2**31 - 1), default=default, metavar="N",
            help=f"{meaning} ({default})")  # fmt: skip
    add("--grpc-keepalive-permit-without-calls", type=_boolean, default=False, metavar="BOOL",
        help="ping connections without calls, too (false)")  # fmt: skip


def _grpc_options(given: argparse.Namespace) -> GrpcOptions:
    return GrpcOptions(
        given.grpc_address,
        given.grpc_port,
        given.reuse_grpc_port,
        Compression[given.grpc_infer_response_compression_level.upper()],
        given.grpc_keepalive_time,
        given.grpc_keepalive_timeout,
        given.grpc_keepalive_permit_without_calls,
        given.grpc_http2_max_pings_without_data,
        given.grpc_http2_min_recv_ping_interval_without_data,
        given.grpc_http2_max_ping_strikes,
        given.grpc_max_connection_age,
        given.grpc_max_connection_age_grace,
        parse_restrictions(
            "--grpc-restricted-protocol", "protocol", given.grpc_restricted_protocol
        ),
    )


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
    if given.load_model and given.model_control_mode != ControlMode.EXPLICIT.value:
        parser.error(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    try:
        http = HttpOptions(
            given.http_address,
            given.http_port,
            given.reuse_http_port,
            parse_restrictions("--http-restricted-api", "api", given.http_restricted_api),
            given.http_header_forward_pattern,
            given.http_max_input_size,
        )
        grpc = _grpc_options(given)
    except ValueError as error:
        parser.error(str(error))
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
        grpc=grpc if given.allow_grpc else None,
        metrics=metrics if given.allow_metrics else None,
        log=LogOptions(
            given.log_verbose,
            given.log_info,
            given.log_warning,
            given.log_error,
            given.log_format == "ISO8601",
            given.log_file,
        ),
        trace=trace_config.options(given.trace_config),
        exit_on_error=given.exit_on_error,
        strict_readiness=given.strict_readiness,
        auto_complete_config=not given.disable_auto_complete_config,
        control_mode=ControlMode(given.model_control_mode),
        startup_models=tuple(dict.fromkeys(given.load_model)),
        poll_s=given.repository_poll_secs,
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
