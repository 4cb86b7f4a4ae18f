"""The command line's options, in Triton's spelling: one table, and the parser.

The last part of the module has tritonserver's options for features that this server lacks.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from reference_server import __version__
from reference_server.codecs import IS_COMPILED
from reference_server.command.trace_config import (
    DEPRECATED_TRACE_OPTIONS,
    deprecated_trace_setting,
    trace_setting,
)
from reference_server.command.values import (
    at_least,
    backend_setting,
    boolean,
    cache_setting,
    duration,
    fraction,
    host_policy,
    leading,
    limit,
    long_number,
    metrics_setting,
    nearest,
    not_empty,
    number,
    pair,
    pattern,
    port,
    seconds,
    stub_model,
    switched_off,
    verbosity,
    warn,
    within,
)
from reference_server.core.backlog import half_of_memory
from reference_server.core.profiles import NEWEST, PROFILES
from reference_server.options import (
    BACKEND_DIRECTORY,
    MOST_CONNECTIONS,
    Compression,
    ControlMode,
    GrpcOptions,
    TimeLimits,
)

_Add = Callable[..., object]


def new_parser() -> CommandParser:
    """Return the parser of the command line. On errors it exits with code 1, like tritonserver."""
    parser = CommandParser(
        prog="reference_server",
        description="Serve a Triton model repository of Python models and ensembles.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"reference-server {__version__} (tritonserver "
        f"{' or '.join(profile.version for profile in PROFILES.values())}; "
        f"{'compiled' if IS_COMPILED else 'not compiled'})",
        help="show the versions of this server and of the tritonserver releases that it emulates",
    )
    parser.add_argument(
        "--triton-version",
        choices=list(PROFILES),
        default=NEWEST.name,
        help=f"the tritonserver release to emulate: limits, defaults, error texts ({NEWEST.name})",
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
        add_options(parser.add_argument_group(title).add_argument)
    _add_others(parser)
    return parser


_CHOICES = re.compile(r"invalid choice: .* \(choose from (.*)\)")
_OF_OPTION = re.compile(r"argument (\S+): (.*)", re.DOTALL)
_STRAY = "Unexpected argument: "
_WITH_VALUE = re.compile(r"argument (\S+): ignored explicit argument.*", re.DOTALL)
_WITHOUT_VALUE = re.compile(r"argument (\S+): expected one argument")


class CommandParser(argparse.ArgumentParser):
    """The parser of the command line. On an error, it prints only the error, not the usage."""

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values of all options. Exits with code 1 on an unknown option."""
        # Not `parse_args`: it lists all unknown options and suggests none.
        given, unknown = self.parse_known_args(arguments)
        if unknown[:1] == ["--"]:  # the end of the options
            del unknown[0]
        if unknown:
            self.error(self._unknown(unknown[0]))
        return given

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 1."""
        # argparse would print the usage and exit with code 2.
        text = _WITHOUT_VALUE.sub(r"option '\1' requires an argument", message)
        text = _WITH_VALUE.sub(r"option '\1' doesn't allow an argument", text)
        found = _OF_OPTION.fullmatch(text)
        if found is not None:  # as in Triton
            name, reason = found[1].partition("/")[0], found[2]
            if (choices := _CHOICES.search(reason)) is not None:
                shown = name.replace("-", "_").replace("__", "--") if "grpc" in name else name
                reason = f"invalid argument for {shown}, expected one of {choices[1]}"
            text = f'Bad option: "{name}".\n{reason}'
        elif not text.startswith(("Error: ", _STRAY)):
            text = f"Error: {text}"
        self.exit(1, f"{text}\nsee --help for all options\n")

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"{_STRAY}{argument}"
        name = argument.partition("=")[0]
        return f"unrecognized option '{argument}'{nearest(name, self._option_string_actions)}"


# -------------------------------------------------------------------------------------- the table

# fmt: off

def _add_switch(add: _Add, name: str, meaning: str, *, default: bool) -> None:
    add(name, type=boolean, default=default, metavar="BOOL",
        help=f"{meaning} ({str(default).lower()})")


def _add_restriction(add: _Add, name: str, protocol: str) -> None:
    add(name, action="append", default=[], metavar="APIS:KEY=VALUE",
        help=f"require this header for {protocol} requests of these categories")


def _add_models(add: _Add) -> None:
    add("--model-repository", "--model-store", action="append", type=Path, metavar="DIR",
        help="a model repository; may be repeated (required)")
    add("--model-control-mode", type=str.lower, choices=[mode.value for mode in ControlMode],
        default="none", help="none: load all models at start; poll: reload changed models; "
        "explicit: load models on request (none)")
    add("--allow-file-override", type=boolean, default=True, metavar="BOOL",
        help="allow load requests to replace a model's files, such as its code (true)")
    add("--allow-outside-links", type=boolean, default=True, metavar="BOOL",
        help="allow a model's files to be links to places outside its folder (true)")
    add("--load-model", action="append", default=[], metavar="NAME",
        help="load this model at start, in mode explicit; a single *: all models")
    add("--repository-poll-secs", type=number, default=15, metavar="SECONDS",
        help="interval between checks for changed models in mode poll; 0: none (15)")
    add("--model-load-thread-count", type=at_least(1), default=4, metavar="N",
        help="number of models loaded in parallel at start (4)")
    add("--model-load-retry-count", type=limit, default=0, metavar="N",
        help="number of immediate retries of a version that failed to load (0)")
    add("--disable-auto-complete-config", action="store_true",
        help="do not ask models to complete their configuration")
    add("--model-config-name", type=not_empty, metavar="NAME",
        help="prefer a model's configs/NAME.pbtxt to its config.pbtxt")


def _add_start_and_end(add: _Add) -> None:
    add("--id", default="triton", help="the server's name in its metadata (default: triton)")
    _add_switch(add, "--model-namespacing", "models of several repositories may share a name; "
        "each repository is a namespace", default=False)
    _add_switch(add, "--exit-on-error", "exit if a model fails to load at start", default=True)
    _add_switch(add, "--strict-readiness", "be ready only if every model is ready", default=True)
    add("--exit-timeout-secs", type=seconds, default=30.0, metavar="SECONDS",
        help="time limit for in-flight requests and models at exit (30)")
    _add_switch(add, "--exit-closes-idle", "close idle HTTP connections at exit; Triton serves "
        "open connections until their clients close them or the time limit ends", default=False)


def _add_http(add: _Add) -> None:
    _add_switch(add, "--allow-http", "serve HTTP", default=True)
    add("--http-address", default="0.0.0.0", metavar="ADDRESS", help="address of HTTP (0.0.0.0)")
    add("--http-port", type=port, default=8000, metavar="PORT",
        help="port of HTTP (8000)")
    _add_switch(add, "--reuse-http-port", "let several servers listen on the same HTTP port",
        default=False)
    add("--http-max-input-size", metavar="BYTES",
        type=leading(1, 2**63 - 1, "Error: --http-max-input-size must be greater than 0.", bits=64),
        help="limit for JSON and raw bodies, also after decompression (67108864; 2.51: none)")
    add("--http-header-forward-pattern", type=pattern, default="", metavar="PATTERN",
        help="headers whose names match become parameters of inference requests")
    _add_restriction(add, "--http-restricted-api", "HTTP")
    add("--http-allowed-host", action="append", default=[], metavar="NAME",
        help="accept this name in the header Host, and requests of web pages of this host; may be "
        "repeated (local names and IP addresses)")
    _add_switch(add, "--http-allow-cross-site", "accept requests of web pages of all sites, as "
        "Triton does", default=False)


def _add_grpc(add: _Add) -> None:
    defaults = GrpcOptions()
    _add_switch(add, "--allow-grpc", "serve gRPC", default=True)
    add("--grpc-address", default=defaults.address, metavar="ADDRESS",
        help="address of gRPC (0.0.0.0)")
    add("--grpc-port", type=port, default=defaults.port, metavar="PORT",
        help="port of gRPC (8001)")
    _add_switch(add, "--reuse-grpc-port", "let several servers listen on the same gRPC port",
        default=False)
    add("--grpc-infer-response-compression-level", type=str.lower, default="none",
        choices=[level.name.lower() for level in Compression],
        help="compression level of responses for clients that accept compression (none)")
    for name, default, meaning in (
        ("keepalive-time", defaults.keepalive_time_ms, "ms without traffic before a ping"),
        ("keepalive-timeout", defaults.keepalive_timeout_ms, "ms to wait for the answer to a ping"),
        ("http2-max-pings-without-data", defaults.max_pings_without_data,
         "limit of pings sent without data; 0: no limit"),
        ("http2-min-recv-ping-interval-without-data",
         defaults.min_recv_ping_interval_without_data_ms, "minimum ms between a client's pings"),
        ("http2-max-ping-strikes", defaults.max_ping_strikes,
         "limit of a client's early pings; 0: no limit"),
        ("max-connection-age", 0, "maximum age of a connection in ms; 0: no limit"),
        ("max-connection-age-grace", 0, "ms to finish calls after the maximum age; 0: no limit"),
    ):
        add(f"--grpc-{name}", type=limit, default=default, metavar="N",
            help=f"{meaning} ({default})")
    _add_switch(add, "--grpc-keepalive-permit-without-calls", "also ping connections without calls",
        default=False)
    pool_size = "--grpc-max-response-pool-size"
    add(pool_size, metavar="N", default=defaults.max_response_pool_size,
        type=leading(1, 2**31 - 1, f"Error: {pool_size} must be greater than 0.", bits=32),
        help="limit of queued responses of decoupled models for a stream's client (no limit)")
    add("--grpc-header-forward-pattern", type=pattern, default="", metavar="PATTERN",
        help="metadata whose names match become parameters of inference requests")
    _add_restriction(add, "--grpc-restricted-protocol", "gRPC")
    for name, meaning in (
        ("use-ssl", "use TLS"),
        ("use-ssl-mutual", "use TLS and require client certificates"),
    ):
        _add_switch(add, f"--grpc-{name}", meaning, default=False)
    for name, meaning in (
        ("server-cert", "the server's certificate chain, in PEM"),
        ("server-key", "the private key of the first certificate, in PEM"),
        ("root-cert", "the root certificates for client certificates, in PEM"),
    ):
        add(f"--grpc-{name}", default="", metavar="FILE", help=meaning)


def _add_time_limits(add: _Add) -> None:
    defaults = TimeLimits()
    for name, default, meaning in (
        ("idle", defaults.idle_s, "idle timeout: no request from the client"),
        ("head", defaults.head_s, "header timeout: TLS, HTTP/2 preface or request head incomplete"),
        ("body", defaults.body_s, "body timeout: less than 1 KiB of a body per second"),
        ("unread", defaults.unread_s, "write timeout: the client reads nothing of its replies"),
    ):
        add(f"--connection-{name}-secs", type=duration, default=default, metavar="SECONDS",
            help=f"{meaning}; 0: no limit ({default:g})")
    add("--connection-most", type=within(0, 2**31 - 1), default=MOST_CONNECTIONS, metavar="COUNT",
        help=f"limit of open connections per port; 0: no limit ({MOST_CONNECTIONS})")
    add("--connection-memory-mib", type=within(0, 2**31 - 1),
        default=half_of_memory() >> 20, metavar="MIB",
        help="memory limit for all in-flight requests of more than 64 KiB, from their first byte "
        "until they are answered; 0: no limit (half of the memory)")


def _add_metrics(add: _Add) -> None:
    _add_switch(add, "--allow-metrics", "serve metrics", default=True)
    add("--metrics-address", metavar="ADDRESS", help="address of the metrics (that of HTTP)")
    add("--metrics-port", type=port, default=8002, metavar="PORT",
        help="port of the metrics (8002)")
    add("--metrics-interval-ms", type=limit, default=2000, metavar="MS",
        help="interval between updates of the machine's metrics (2000)")
    _add_switch(add, "--allow-page", "serve the live page, at / of the metrics port, and a form "
                "for requests, at /try of HTTP", default=True)
    add("--allow-page-log", type=boolean, metavar="BOOL",
        help="show the log's last lines on the live page (true if the port is local)")
    _add_switch(add, "--allow-cpu-metrics", "report CPU and memory in the metrics", default=True)
    add("--metrics-config", action="append", default=[], type=metrics_setting,
        metavar="SETTING=VALUE", help="counter_latencies=false, summary_latencies=true, "
        "histogram_latencies=true or summary_quantiles=QUANTILE:ERROR,...; may be "
        "repeated")


def _add_shared_memory(add: _Add) -> None:
    add("--allow-client-shm", type=boolean, metavar="BOOL",
        help="allow clients to register shared memory (false; 2.51: true)")


def _add_log_and_trace(add: _Add) -> None:
    add("--log-verbose", type=verbosity, default=0, metavar="LEVEL", help="verbosity; 0: off (0)")
    add("--execution-warning-secs", type=duration, default=10.0, metavar="SECONDS",
        help="log the stack of an inline model that executes for longer; 0: never (10)")
    for level in ("info", "warning", "error"):
        _add_switch(add, f"--log-{level}", f"log at level {level}", default=True)
    add("--log-format", choices=("default", "ISO8601"), default="default", help="log line format")
    add("--log-file", default="", metavar="FILE",
        help="log here instead of stdout and stderr (2.51: stderr)")
    add("--trace-config", action="append", default=[], type=trace_setting,
        metavar="SETTING=VALUE", help="level=OFF|TIMESTAMPS|TENSORS, rate=N, count=N, "
        "triton,file=FILE or triton,log-frequency=N; or mode=opentelemetry and "
        "opentelemetry,... with url=URL, resource=KEY=VALUE, bsp_max_queue_size=N, "
        "bsp_schedule_delay=MS or bsp_max_export_batch_size=N; may be repeated")


def _add_execution(add: _Add) -> None:
    add("--backend-config", action="append", default=[], type=backend_setting,
        metavar="BACKEND,SETTING=VALUE", help="python,host=process: run models in "
        "separate processes; docs/hosts.md lists the other settings; may be repeated")
    add("--backend-directory", type=Path, default=BACKEND_DIRECTORY, metavar="DIR",
        help=f"directory of Python-based backends ({BACKEND_DIRECTORY})")
    add("--strict-portable", nargs="?", const=True, default=False, type=boolean, metavar="BOOL",
        help="refuse what works here but not on tritonserver 2.51; docs/protocol.md (false)")
    add("--stub-model", action="append", default=[], type=stub_model,
        metavar="NAME=MODULE:FUNCTION", help="answer with a function for a model whose backend is "
        "not available; see docs/backends.md; may be repeated")
    add("--cache-config", action="append", default=[], type=cache_setting,
        metavar="CACHE,SETTING=VALUE", help="local,size=BYTES: keep responses of models with "
        "response_cache { enable: true } in a cache of this size (no cache)")
    add("--response-cache-byte-size", type=long_number, metavar="BYTES",
        help="deprecated: use --cache-config=local,size=BYTES")
    add("--rate-limit", type=str.lower, choices=("off", "execution_count"), default="off",
        help="execution_count: executions wait for the resources that their instances need (off)")
    add("--rate-limit-resource", action="append", default=[], metavar="NAME:COUNT[:DEVICE]",
        help="amount of a resource (the largest amount that an instance needs)")

# fmt: on

# ------------------------------------------------------------------ options of missing features

#: Options that only tune or switch off missing features: accepted with a warning.
WITHOUT_EFFECT: Mapping[str, Callable[[str], object]] = {
    "allow-gpu-metrics": boolean,
    "buffer-manager-thread-count": number,
    "cache-directory": str,
    "cuda-memory-pool-byte-size": pair(":", long_number),
    "cuda-virtual-address-size": pair(":", long_number),
    "enable-peer-access": boolean,
    "grpc-infer-allocation-pool-size": number,
    "grpc-infer-thread-count": leading(
        2,
        128,
        "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.",
        bits=32,
    ),
    "host-policy": host_policy,
    "http-thread-count": number,
    "min-supported-compute-capability": fraction,
    "model-load-gpu-limit": pair(":", fraction),
    "pinned-memory-pool-byte-size": long_number,
    "repoagent-directory": str,
    "sagemaker-port": number,
    "sagemaker-safe-port-range": pair("-"),
    "sagemaker-thread-count": number,
    "vertex-ai-default-model": str,
    "vertex-ai-port": number,
    "vertex-ai-thread-count": number,
}
#: Options for features that would change answers, or open a port: only false is accepted.
NOT_SERVED = ("allow-sagemaker", "allow-vertex-ai")

_EPILOG = (
    "Accepted without effect: "
    + ", ".join(f"--{name}" for name in WITHOUT_EFFECT)
    + ". Only false is accepted for: "
    + ", ".join(f"--{name}" for name in NOT_SERVED)
    + ". Deprecated as in Triton: --strict-model-config, --response-cache-byte-size, "
    + ", ".join(f"--{name}" for name in DEPRECATED_TRACE_OPTIONS)
    + "."
)


def _add_others(parser: argparse.ArgumentParser) -> None:
    """Add Triton's options of missing features, and deprecated options. Help lists their names."""
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
    """Return the given options that have no effect."""
    return [
        f"--{name}" for name in WITHOUT_EFFECT if getattr(given, name.replace("-", "_")) is not None
    ]


def auto_completes(given: argparse.Namespace) -> bool:
    """Return whether configurations are completed automatically.

    Either --disable-auto-complete-config or --strict-model-config=true switches this off.
    """
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
