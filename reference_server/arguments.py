"""The options of the command line, in Triton's spelling: one table, and what reads their values.

After it the options of tritonserver for what this server does not have.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from reference_server import __version__
from reference_server.codecs.compiled import IS_COMPILED
from reference_server.config_options import (
    backend_setting,
    cache_setting,
    metrics_setting,
    nearest,
    warn,
)
from reference_server.core.intake import half_of_memory
from reference_server.core.profiles import NEWEST, PROFILES
from reference_server.option_values import (
    boolean,
    duration,
    leading,
    milliseconds,
    number,
    pattern,
    seconds,
    stub_model,
    switched_off,
    within,
)
from reference_server.options import (
    BACKEND_DIRECTORY,
    MOST_CONNECTIONS,
    Compression,
    ControlMode,
    GrpcOptions,
    TimeLimits,
)
from reference_server.trace_config import (
    DEPRECATED_TRACE_OPTIONS,
    deprecated_trace_setting,
    trace_setting,
)

_Add = Callable[..., object]


def parser() -> CommandParser:
    """What reads a command line; it exits with code 1 on a bad one, as tritonserver does."""
    made = CommandParser(
        prog="reference_server",
        description="Serve a Triton model repository of Python models and ensembles.",
        epilog=_EPILOG,
    )
    made.add_argument(
        "--version",
        action="version",
        version=f"reference-server {__version__} (tritonserver "
        f"{' or '.join(profile.version for profile in PROFILES.values())}; "
        f"{'compiled' if IS_COMPILED else 'not compiled'})",
        help="show the versions of this server and of those it stands in for",
    )
    made.add_argument(
        "--triton-version",
        choices=list(PROFILES),
        default=NEWEST.name,
        help=f"the tritonserver that it stands in for: limits, defaults, texts ({NEWEST.name})",
    )
    for title, add_options in (
        ("models", _add_models),
        ("start and end", _add_start_and_end),
        ("HTTP", _add_http),
        ("gRPC", _add_grpc),
        ("time limits of all ports", _add_time_limits),
        ("metrics", _add_metrics),
        ("shared memory", _add_shared_memory),
        ("log and trace", _add_log_and_trace),
        ("execution", _add_execution),
    ):
        add_options(made.add_argument_group(title).add_argument)
    _add_others(made)
    return made


_WITHOUT_VALUE = re.compile(r"argument (\S+): expected one argument")


class CommandParser(argparse.ArgumentParser):
    """Ends a bad start as tritonserver does, with code 1, but tells no more than what is wrong."""

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The values of all options. Exits if there is something that is none."""
        # Not `parse_args`, which names all that is unknown and suggests nothing.
        given, strange = self.parse_known_args(arguments)
        if strange:
            self.error(self._described(strange[0]))
        return given

    def error(self, message: str) -> NoReturn:
        """Exit with the reason, and where all options are told."""
        # argparse would print its usage and exit with 2; tritonserver exits with 1.
        text = _WITHOUT_VALUE.sub(r"option '\1' requires an argument", message)
        text = text.removeprefix("argument ").removeprefix("Error: ")
        self.exit(1, f"Error: {text}\nsee --help for all options\n")

    def _described(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"Unexpected argument: {argument}"
        name = argument.partition("=")[0]
        return f"unrecognized option '{argument}'{nearest(name, self._option_string_actions)}"


# -------------------------------------------------------------------------------------- the table

# fmt: off

def _add_switch(add: _Add, name: str, meaning: str, *, default: bool) -> None:
    add(name, type=boolean, default=default, metavar="BOOL",
        help=f"{meaning} ({str(default).lower()})")


def _add_restriction(add: _Add, name: str, protocol: str) -> None:
    add(name, action="append", default=[], metavar="APIS:KEY=VALUE",
        help=f"demand this header of {protocol} requests of these categories")


def _add_models(add: _Add) -> None:
    add("--model-repository", "--model-store", action="append", type=Path, metavar="DIR",
        help="a model repository; may be given several times (required)")
    add("--model-control-mode", type=str.lower, choices=[mode.value for mode in ControlMode],
        default="none", help="none: load all at start; poll: follow the files; "
        "explicit: load what clients ask for (none)")
    add("--allow-file-override", type=boolean, default=True, metavar="BOOL",
        help="whether load requests may bring files of a model, such as its code (true)")
    add("--allow-outside-links", type=boolean, default=True, metavar="BOOL",
        help="whether a model's files may be links out of its folder (true)")
    add("--load-model", action="append", default=[], metavar="NAME",
        help="load this model at the start, in mode explicit; * alone: all of them")
    add("--repository-poll-secs", type=within(1, 2**31 - 1), default=15, metavar="SECONDS",
        help="how often the files are looked at in mode poll (15)")
    add("--model-load-thread-count", type=within(1, 1024), default=4, metavar="N",
        help="models loaded side by side at start (4)")
    add("--model-load-retry-count", type=within(0, 2**31 - 1), default=0, metavar="N",
        help="how often a version that failed to load is tried again at once (0)")
    add("--disable-auto-complete-config", action="store_true",
        help="do not ask models to complete their configuration")
    add("--model-config-name", default="", metavar="NAME",
        help="prefer a model's configs/NAME.pbtxt to its config.pbtxt")


def _add_start_and_end(add: _Add) -> None:
    add("--id", default="triton", help="the server's name in its metadata (default: triton)")
    _add_switch(add, "--model-namespacing", "models of several repositories may have one name; "
        "each repository is a namespace", default=False)
    _add_switch(add, "--exit-on-error", "end when a model cannot be loaded at start", default=True)
    _add_switch(add, "--strict-readiness", "be ready only if every model is", default=True)
    add("--exit-timeout-secs", type=seconds, default=30.0, metavar="SECONDS",
        help="how long requests in flight and models may take at exit (30)")


def _add_http(add: _Add) -> None:
    _add_switch(add, "--allow-http", "serve HTTP", default=True)
    add("--http-address", default="0.0.0.0", metavar="ADDRESS", help="address of HTTP (0.0.0.0)")
    add("--http-port", type=within(1, 65535), default=8000, metavar="PORT",
        help="port of HTTP (8000)")
    _add_switch(add, "--reuse-http-port", "let several servers listen on the same HTTP port",
        default=False)
    add("--http-max-input-size", metavar="BYTES",
        type=leading(1, 2**63 - 1, "--http-max-input-size must be greater than 0.", bits=64),
        help="refuse larger JSON and raw bodies, and what they become (67108864; 2.51: any size)")
    add("--http-header-forward-pattern", type=pattern, default="", metavar="PATTERN",
        help="headers whose names match become parameters of infer requests")
    _add_restriction(add, "--http-restricted-api", "HTTP")


def _add_grpc(add: _Add) -> None:
    defaults = GrpcOptions()
    _add_switch(add, "--allow-grpc", "serve gRPC", default=True)
    add("--grpc-address", default=defaults.address, metavar="ADDRESS",
        help="address of gRPC (0.0.0.0)")
    add("--grpc-port", type=within(1, 65535), default=defaults.port, metavar="PORT",
        help="port of gRPC (8001)")
    _add_switch(add, "--reuse-grpc-port", "let several servers listen on the same gRPC port",
        default=False)
    add("--grpc-infer-response-compression-level", default="none",
        choices=[level.name.lower() for level in Compression],
        help="how hard responses are compressed for clients that take it (none)")
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
    ):
        add(f"--grpc-{name}", type=within(0, 2**31 - 1), default=default, metavar="N",
            help=f"{meaning} ({default})")
    _add_switch(add, "--grpc-keepalive-permit-without-calls", "ping connections without calls, too",
        default=False)
    pool_size = "--grpc-max-response-pool-size"
    add(pool_size, metavar="N", default=defaults.max_response_pool_size,
        type=leading(1, 2**31 - 1, f"{pool_size} must be greater than 0.", bits=32),
        help="responses of decoupled models that may wait for a stream's client (any number)")
    add("--grpc-header-forward-pattern", type=pattern, default="", metavar="PATTERN",
        help="metadata whose names match become parameters of infer requests")
    _add_restriction(add, "--grpc-restricted-protocol", "gRPC")
    for name, meaning in (
        ("use-ssl", "speak TLS"),
        ("use-ssl-mutual", "speak TLS, to clients that show a certificate"),
    ):
        _add_switch(add, f"--grpc-{name}", meaning, default=False)
    for name, meaning in (
        ("server-cert", "the server's certificates, in PEM"),
        ("server-key", "the key of the first of them, in PEM"),
        ("root-cert", "what vouches for clients' certificates, in PEM"),
    ):
        add(f"--grpc-{name}", default="", metavar="FILE", help=meaning)


def _add_time_limits(add: _Add) -> None:
    defaults = TimeLimits()
    for name, default, meaning in (
        ("idle", defaults.idle_s, "a client may ask for nothing"),
        ("head", defaults.head_s, "TLS, the beginning of HTTP/2 and a request's head may take"),
        ("body", defaults.body_s, "a body may come with less than 1 KiB in a second"),
        ("unread", defaults.unread_s, "a client may read nothing of what waits for it"),
    ):
        add(f"--connection-{name}-secs", type=duration, default=default, metavar="SECONDS",
            help=f"how long {meaning}; 0 is for ever ({default:g})")
    add("--connection-most", type=within(0, 2**31 - 1), default=MOST_CONNECTIONS, metavar="COUNT",
        help=f"connections that each port has at once; 0 is any number ({MOST_CONNECTIONS})")
    add("--connection-memory-mib", type=within(0, 2**31 - 1),
        default=half_of_memory() >> 20, metavar="MIB",
        help="what the requests of more than 64 KiB of all connections may have together, while "
        "they come and until they are answered; 0 is any number (half of the memory)")


def _add_metrics(add: _Add) -> None:
    _add_switch(add, "--allow-metrics", "serve metrics", default=True)
    add("--metrics-address", metavar="ADDRESS", help="address of the metrics (that of HTTP)")
    add("--metrics-port", type=within(1, 65535), default=8002, metavar="PORT",
        help="port of the metrics (8002)")
    add("--metrics-interval-ms", type=milliseconds, default=2000, metavar="MS",
        help="how old the machine's metrics may become (2000)")
    _add_switch(add, "--allow-page", "show people the models, at / of the metrics port, and a form "
                "for requests, at /try of HTTP", default=True)
    add("--allow-page-log", type=boolean, metavar="BOOL",
        help="show the log's last lines there (if the port is this machine's alone)")
    _add_switch(add, "--allow-cpu-metrics", "tell of CPU and memory in the metrics", default=True)
    add("--metrics-config", action="append", default=[], type=metrics_setting,
        metavar="SETTING=VALUE", help="counter_latencies=false, summary_latencies=true, "
        "histogram_latencies=true or summary_quantiles=QUANTILE:ERROR,...; may be given several "
        "times")


def _add_shared_memory(add: _Add) -> None:
    add("--allow-client-shm", type=boolean, metavar="BOOL",
        help="let clients register shared memory (false; 2.51: true)")


def _add_log_and_trace(add: _Add) -> None:
    add("--log-verbose", type=number, default=0, metavar="LEVEL", help="verbosity; 0 is off (0)")
    add("--execution-warning-secs", type=duration, default=10.0, metavar="SECONDS",
        help="log where an inline model is that executes for longer; 0 is never (10)")
    for level in ("info", "warning", "error"):
        _add_switch(add, f"--log-{level}", f"log at level {level}", default=True)
    add("--log-format", choices=("default", "ISO8601"), default="default", help="of log lines")
    add("--log-file", default="", metavar="FILE", help="log here instead of stderr")
    add("--trace-config", action="append", default=[], type=trace_setting,
        metavar="SETTING=VALUE", help="level=OFF|TIMESTAMPS|TENSORS, rate=N, count=N, "
        "triton,file=FILE or triton,log-frequency=N; or mode=opentelemetry and "
        "opentelemetry,... with url=URL, resource=KEY=VALUE, bsp_max_queue_size=N, "
        "bsp_schedule_delay=MS or bsp_max_export_batch_size=N; may be given several times")


def _add_execution(add: _Add) -> None:
    add("--backend-config", action="append", default=[], type=backend_setting,
        metavar="BACKEND,SETTING=VALUE", help="python,host=process: run models in processes of "
        "their own; the documentation lists the others; may be given several times")
    add("--backend-directory", type=Path, default=BACKEND_DIRECTORY, metavar="DIR",
        help=f"where Python-based backends lie ({BACKEND_DIRECTORY})")
    add("--stub-model", action="append", default=[], type=stub_model,
        metavar="NAME=MODULE:FUNCTION", help="let a function answer for a model whose backend is "
        "not here; the documentation says how; may be given several times")
    add("--cache-config", action="append", default=[], type=cache_setting,
        metavar="CACHE,SETTING=VALUE", help="local,size=BYTES: keep responses of models with "
        "response_cache { enable: true } in so many bytes (no cache)")
    add("--response-cache-byte-size", type=number, metavar="BYTES",
        help="deprecated: what --cache-config=local,size=BYTES is")
    add("--rate-limit", choices=("off", "execution_count"), default="off", help="execution_count: "
        "executions wait for the resources that their instances need (off)")
    add("--rate-limit-resource", action="append", default=[], metavar="NAME:COUNT[:DEVICE]",
        help="how much there is of a resource (what the neediest instance needs)")

# fmt: on

# -------------------------------------------------------------------- options of what is not here

#: What only tunes or switches off what is not here: accepted with a warning.
WITHOUT_EFFECT: Mapping[str, Callable[[str], object]] = {
    "allow-gpu-metrics": boolean,
    "buffer-manager-thread-count": number,
    "cache-directory": str,
    "cuda-memory-pool-byte-size": str,
    "cuda-virtual-address-size": str,
    "enable-peer-access": boolean,
    "grpc-infer-allocation-pool-size": number,
    "grpc-infer-thread-count": leading(
        2,
        128,
        "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        bits=32,
    ),
    "host-policy": str,
    "http-thread-count": number,
    "min-supported-compute-capability": str,
    "model-load-gpu-limit": str,
    "pinned-memory-pool-byte-size": number,
    "repoagent-directory": str,
    "sagemaker-port": number,
    "sagemaker-safe-port-range": str,
    "sagemaker-thread-count": number,
    "vertex-ai-default-model": str,
    "vertex-ai-port": number,
    "vertex-ai-thread-count": number,
}
#: What would change answers, or open a port: it may be switched off, which changes nothing.
NOT_SERVED = ("allow-sagemaker", "allow-vertex-ai")

_EPILOG = (
    "Accepted, though there is nothing here that they could change: "
    + ", ".join(f"--{name}" for name in WITHOUT_EFFECT)
    + ". Only false is accepted for: "
    + ", ".join(f"--{name}" for name in NOT_SERVED)
    + ". Deprecated as in Triton: --strict-model-config, --response-cache-byte-size, "
    + ", ".join(f"--{name}" for name in DEPRECATED_TRACE_OPTIONS)
    + "."
)


def _add_others(parser: argparse.ArgumentParser) -> None:
    """The options of Triton that are not shown: of what is not here, and deprecated ones."""
    for name, parse in WITHOUT_EFFECT.items():
        parser.add_argument(f"--{name}", metavar="VALUE", help=argparse.SUPPRESS, type=parse)
    for name in NOT_SERVED:
        parser.add_argument(f"--{name}", metavar="BOOL", help=argparse.SUPPRESS, type=switched_off)
    parser.add_argument(
        "--strict-model-config", metavar="BOOL", help=argparse.SUPPRESS, type=_strict
    )
    for name, (key, form) in DEPRECATED_TRACE_OPTIONS.items():
        parser.add_argument(
            f"--{name}",
            metavar="VALUE",
            help=argparse.SUPPRESS,
            action="append",
            default=[],
            type=deprecated_trace_setting(name, key, form),
        )


def ignored(given: argparse.Namespace) -> list[str]:
    """Those of the options given that change nothing."""
    return [
        f"--{name}" for name in WITHOUT_EFFECT if getattr(given, name.replace("-", "_")) is not None
    ]


def auto_completes(given: argparse.Namespace) -> bool:
    """Whether models complete their configurations: if neither name of the option forbids it."""
    forbidden: bool = given.disable_auto_complete_config
    if forbidden and given.strict_model_config is False:
        warn(
            "Overriding deprecated '--strict-model-config' from False to True in favor of "
            "'--disable-auto-complete-config'!"
        )
    return not (forbidden or given.strict_model_config)


def _strict(text: str) -> bool:
    warn(
        "'--strict-model-config' has been deprecated! Please use "
        "'--disable-auto-complete-config' instead."
    )
    return boolean(text)
