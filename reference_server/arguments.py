"""The arguments of the command line, in Triton's spelling and by subject. Only their grammar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reference_server import argument_values as values
from reference_server import (
    backend_config,
    cache_config,
    metrics_config,
    other_flags,
    trace_config,
)
from reference_server.command_parser import CommandParser
from reference_server.options import BACKEND_DIRECTORY, Compression, ControlMode, GrpcOptions

_Add = Callable[..., object]


def parser() -> CommandParser:
    """What reads a command line; it exits with code 1 on a bad one, as tritonserver does."""
    made = CommandParser(
        prog="reference_server",
        description="Serve a Triton model repository of Python models and ensembles.",
        epilog=other_flags.DESCRIBED,
    )
    for title, add_options in (
        ("models", _add_models),
        ("start and end", _add_start_and_end),
        ("HTTP", _add_http),
        ("gRPC", _add_grpc),
        ("metrics", _add_metrics),
        ("log and trace", _add_log_and_trace),
        ("execution", _add_execution),
    ):
        add_options(made.add_argument_group(title).add_argument)
    other_flags.add(made)
    return made


# ------------------------------------------------------------------------------------- subjects


def _add_models(add: _Add) -> None:
    add("--model-repository", "--model-store", action="append", type=Path, metavar="DIR",
        help="a model repository; may be given several times (required)")  # fmt: skip
    add("--model-control-mode", type=str.lower, choices=[mode.value for mode in ControlMode],
        default="none", help="none: load all at start; poll: follow the files; "
        "explicit: load what clients ask for (none)")  # fmt: skip
    add("--load-model", action="append", default=[], metavar="NAME",
        help="load this model at the start, in mode explicit; * alone: all of them")  # fmt: skip
    add("--repository-poll-secs", type=values.within(1, 2**31 - 1), default=15, metavar="SECONDS",
        help="how often the files are looked at in mode poll (15)")  # fmt: skip
    add("--model-load-thread-count", type=values.within(1, 1024), default=4, metavar="N",
        help="models loaded side by side at start (4)")  # fmt: skip
    add("--model-load-retry-count", type=values.within(0, 2**31 - 1), default=0, metavar="N",
        help="how often a version that failed to load is tried again at once (0)")  # fmt: skip
    add("--disable-auto-complete-config", action="store_true",
        help="do not ask models to complete their configuration")  # fmt: skip
    add("--model-config-name", default="", metavar="NAME",
        help="prefer a model's configs/NAME.pbtxt to its config.pbtxt")  # fmt: skip


def _add_start_and_end(add: _Add) -> None:
    add("--id", default="triton", help="the server's name in its metadata (default: triton)")
    add("--exit-on-error", type=values.boolean, default=True, metavar="BOOL",
        help="end when a model cannot be loaded at start (true)")  # fmt: skip
    add("--strict-readiness", type=values.boolean, default=True, metavar="BOOL",
        help="be ready only if every model is (true)")  # fmt: skip
    add("--exit-timeout-secs", type=values.seconds, default=30.0, metavar="SECONDS",
        help="how long requests in flight and models may take at exit (30)")  # fmt: skip


def _add_http(add: _Add) -> None:
    add("--allow-http", type=values.boolean, default=True, metavar="BOOL", help="serve HTTP (true)")
    add("--http-address", default="0.0.0.0", metavar="ADDRESS", help="address of HTTP (0.0.0.0)")
    add("--http-port", type=values.within(1, 65535), default=8000, metavar="PORT",
        help="port of HTTP (8000)")  # fmt: skip
    add("--reuse-http-port", type=values.boolean, default=False, metavar="BOOL",
        help="let several servers listen on the same HTTP port (false)")  # fmt: skip
    add("--http-max-input-size", type=values.within(1, 2**63 - 1), metavar="BYTES",
        help="refuse larger request bodies (any size)")  # fmt: skip
    add("--http-header-forward-pattern", type=values.pattern, default="", metavar="PATTERN",
        help="headers whose names match become parameters of infer requests")  # fmt: skip
    _add_restriction(add, "http-restricted-api", "HTTP")


def _add_restriction(add: _Add, option: str, front: str) -> None:
    add(f"--{option}", action="append", default=[], metavar="APIS:KEY=VALUE",
        help=f"demand this header of {front} requests of these categories")  # fmt: skip


def _add_grpc(add: _Add) -> None:
    defaults = GrpcOptions()
    add("--allow-grpc", type=values.boolean, default=True, metavar="BOOL", help="serve gRPC (true)")
    add("--grpc-address", default=defaults.address, metavar="ADDRESS",
        help="address of gRPC (0.0.0.0)")  # fmt: skip
    add("--grpc-port", type=values.within(1, 65535), default=defaults.port, metavar="PORT",
        help="port of gRPC (8001)")  # fmt: skip
    add("--reuse-grpc-port", type=values.boolean, default=False, metavar="BOOL",
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
        add(f"--grpc-{name}", type=values.within(0, 2**31 - 1), default=default, metavar="N",
            help=f"{meaning} ({default})")  # fmt: skip
    add("--grpc-keepalive-permit-without-calls", type=values.boolean, default=False, metavar="BOOL",
        help="ping connections without calls, too (false)")  # fmt: skip
    add("--grpc-header-forward-pattern", type=values.pattern, default="", metavar="PATTERN",
        help="metadata whose names match become parameters of infer requests")  # fmt: skip
    _add_restriction(add, "grpc-restricted-protocol", "gRPC")
    for name, meaning in (
        ("use-ssl", "speak TLS"),
        ("use-ssl-mutual", "speak TLS, to clients that show a certificate"),
    ):
        add(f"--grpc-{name}", type=values.boolean, default=False, metavar="BOOL",
            help=f"{meaning} (false)")  # fmt: skip
    for name, meaning in (
        ("server-cert", "the server's certificates, in PEM"),
        ("server-key", "the key of the first of them, in PEM"),
        ("root-cert", "what vouches for clients' certificates, in PEM"),
    ):
        add(f"--grpc-{name}", default="", metavar="FILE", help=meaning)


def _add_metrics(add: _Add) -> None:
    add("--allow-metrics", type=values.boolean, default=True, metavar="BOOL",
        help="serve metrics (true)")  # fmt: skip
    add("--metrics-address", metavar="ADDRESS", help="address of the metrics (that of HTTP)")
    add("--metrics-port", type=values.within(1, 65535), default=8002, metavar="PORT",
        help="port of the metrics (8002)")  # fmt: skip
    add("--metrics-interval-ms", type=values.milliseconds, default=2000, metavar="MS",
        help="how old the machine's metrics may become (2000)")  # fmt: skip
    add("--allow-cpu-metrics", type=values.boolean, default=True, metavar="BOOL",
        help="tell of CPU and memory in the metrics (true)")  # fmt: skip
    add("--metrics-config", action="append", default=[], type=metrics_config.setting,
        metavar="SETTING=VALUE", help="counter_latencies=false, summary_latencies=true or "
        "summary_quantiles=QUANTILE:ERROR,...; may be given several times")  # fmt: skip


def _add_log_and_trace(add: _Add) -> None:
    add(
        "--log-verbose",
        type=values.number,
        default=0,
        metavar="LEVEL",
        help="verbosity; 0 is off (0)",
    )
    for level in ("info", "warning", "error"):
        add(f"--log-{level}", type=values.boolean, default=True, metavar="BOOL",
            help=f"log at level {level} (true)")  # fmt: skip
    add("--log-format", choices=("default", "ISO8601"), default="default", help="of log lines")
    add("--log-file", default="", metavar="FILE", help="log here instead of stderr")
    add("--trace-config", action="append", default=[], type=trace_config.setting,
        metavar="SETTING=VALUE", help="level=OFF|TIMESTAMPS|TENSORS, rate=N, count=N, "
        "triton,file=FILE or triton,log-frequency=N; may be given several times")  # fmt: skip


def _add_execution(add: _Add) -> None:
    add("--backend-config", action="append", default=[], type=backend_config.setting,
        metavar="BACKEND,SETTING=VALUE", help="python,host=process: run models in processes of "
        "their own; the documentation lists the others; may be given several times")  # fmt: skip
    add("--backend-directory", type=Path, default=BACKEND_DIRECTORY, metavar="DIR",
        help=f"where Python-based backends lie ({BACKEND_DIRECTORY})")  # fmt: skip
    add("--cache-config", action="append", default=[], type=cache_config.setting,
        metavar="CACHE,SETTING=VALUE", help="local,size=BYTES: keep responses of models with "
        "response_cache { enable: true } in so many bytes (no cache)")  # fmt: skip
    add("--response-cache-byte-size", type=values.number, metavar="BYTES",
        help="deprecated: what --cache-config=local,size=BYTES is")  # fmt: skip
    add("--rate-limit", choices=("off", "execution_count"), default="off", help="execution_count: "
        "executions wait for the resources that their instances need (off)")  # fmt: skip
    add("--rate-limit-resource", action="append", default=[], metavar="NAME:COUNT[:DEVICE]",
        help="how much there is of a resource (what the neediest instance needs)")  # fmt: skip
