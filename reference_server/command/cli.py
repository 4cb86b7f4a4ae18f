"""The command line: parse the arguments to ServerOptions, run the server, return an exit code."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeVar

try:
    from uvloop import run as _run
except ImportError:  # no uvloop on this platform: the same server, slower
    from asyncio import run as _run

from reference_server.codecs import IS_COMPILED
from reference_server.command import arguments as command_line
from reference_server.command import preflight, trace_config, values
from reference_server.command.arguments import CommandParser
from reference_server.core.errors import ServerError
from reference_server.core.profiles import PROFILES
from reference_server.frontends.http.origins import is_loopback
from reference_server.observability import logs
from reference_server.options import (
    Compression,
    ControlMode,
    GrpcOptions,
    HttpOptions,
    LogOptions,
    MetricsOptions,
    RateLimit,
    Restriction,
    ServerOptions,
    TimeLimits,
    TlsOptions,
    WebOptions,
    parse_resources,
    parse_restrictions,
)
from reference_server.server import Server
from reference_server.shutdown import ExitTimeout

log = logging.getLogger(__name__)

#: The interpreter's switch interval. With a shorter interval, streams of many responses lose more
#: to thread switches than other threads gain.
_SWITCH_INTERVAL_S = 0.001
#: malloc reuses freed blocks up to this size, and keeps this many free bytes at the end of a heap.
#: For blocks, glibc accepts no larger value (mallopt(3), malloc.h).
_KEPT_BYTES = 1 << 25
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_T = TypeVar("_T")


def _tls_options(given: argparse.Namespace) -> TlsOptions | None:
    if not (given.grpc_use_ssl or given.grpc_use_ssl_mutual):
        return None
    return TlsOptions(
        given.grpc_server_cert,
        given.grpc_server_key,
        given.grpc_root_cert,
        given.grpc_use_ssl_mutual,
    )


def _grpc_options(parser: CommandParser, given: argparse.Namespace) -> GrpcOptions:
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
        _restrictions(
            parser, "--grpc-restricted-protocol", "protocol", given.grpc_restricted_protocol
        ),
        given.grpc_header_forward_pattern,
        _tls_options(given),
        given.grpc_max_response_pool_size,
    )


def _restrictions(
    parser: CommandParser, option: str, what: str, given: Sequence[str]
) -> dict[str, Restriction]:
    try:
        return parse_restrictions(option, what, given)
    except ValueError as error:
        parser.error(f"argument {option}: {error}")


def _rate_limit(parser: CommandParser, given: argparse.Namespace) -> RateLimit | None:
    try:
        limits = parse_resources(given.rate_limit_resource)
    except ValueError as error:
        parser.error(f"argument --rate-limit-resource: {error}")
    return RateLimit(limits) if given.rate_limit == "execution_count" else None


def _time_limits(given: argparse.Namespace) -> TimeLimits:
    return TimeLimits(
        given.connection_idle_secs,
        given.connection_head_secs,
        given.connection_body_secs,
        given.connection_unread_secs,
    )


def _cache_bytes(parser: CommandParser, given: argparse.Namespace) -> int | None:
    settings = given.cache_config
    if given.response_cache_byte_size is not None:
        if settings:
            parser.error(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both "
                "provided. Please provide one or the other."
            )
        equivalent = f"local,size={given.response_cache_byte_size}"
        values.warn(
            "'--response-cache-byte-size' has been deprecated! Please use "
            f"'--cache-config={equivalent}' instead."
        )
        settings = [values.cache_setting(equivalent)]
    return values.cache_byte_size(settings, given.cache_directory or values.CACHE_DIRECTORY)


def _http_options(parser: CommandParser, given: argparse.Namespace) -> HttpOptions:
    profile = PROFILES[given.triton_version]
    return HttpOptions(
        given.http_address,
        given.http_port,
        given.reuse_http_port,
        _restrictions(parser, "--http-restricted-api", "api", given.http_restricted_api),
        given.http_header_forward_pattern,
        _given_or(given.http_max_input_size, profile.http_max_input_size),
        given.allow_page,
    )


def _metrics_options(given: argparse.Namespace, restricted: Set[str]) -> MetricsOptions:
    address = given.http_address if given.metrics_address is None else given.metrics_address
    return MetricsOptions(
        address,
        given.metrics_port,
        given.metrics_interval_ms,
        given.allow_cpu_metrics,
        values.latency_metrics(given.metrics_config),
        # The page shows the same data as these operations, so it is off where they are restricted.
        given.allow_page and not {"model-repository", "statistics"} & restricted,
        # Log lines may contain what models print about requests: other machines see them only if
        # the option says so.
        _given_or(given.allow_page_log, is_loopback(address)) and "logging" not in restricted,
    )


def _log_options(given: argparse.Namespace) -> LogOptions:
    return LogOptions(
        given.log_verbose,
        given.log_info,
        given.log_warning,
        given.log_error,
        given.log_format == "ISO8601",
        given.log_file,
    )


def parse(arguments: Sequence[str]) -> tuple[ServerOptions, list[str]]:
    """Parse the command line.

    Args:
        arguments: the command line without the program's name.

    Returns:
        The options, and the warnings to log once the log is configured.

    Raises:
        ServerError: the response cache cannot be created.
        SystemExit: an option is invalid; the exit code is 1, as tritonserver's.
    """
    parser = command_line.new_parser()
    given = parser.read(arguments)
    profile = PROFILES[given.triton_version]
    if given.load_model and given.model_control_mode != ControlMode.EXPLICIT.value:
        parser.error(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    http = _http_options(parser, given)
    grpc = _grpc_options(parser, given)
    rate_limit = _rate_limit(parser, given)
    metrics = _metrics_options(given, http.restricted.keys() | grpc.restricted.keys())
    enabled = {
        "HTTP": http if given.allow_http else None,
        "GRPC": grpc if given.allow_grpc else None,
        "metrics": metrics if given.allow_metrics else None,
    }
    _check_addresses(parser, enabled)
    options = ServerOptions(
        model_repositories=tuple(given.model_repository or ()),
        model_namespacing=given.model_namespacing,
        time_limits=_time_limits(given),
        most_connections=given.connection_most,
        most_request_bytes=given.connection_memory_mib << 20,
        server_id=given.id,
        http=http if given.allow_http else None,
        grpc=grpc if given.allow_grpc else None,
        metrics=metrics if given.allow_metrics else None,
        web=WebOptions(tuple(given.http_allowed_host), given.http_allow_cross_site),
        log=_log_options(given),
        trace=trace_config.trace_options(trace_config.trace_settings(given)),
        exit_on_error=given.exit_on_error,
        strict_readiness=given.strict_readiness,
        auto_complete_config=command_line.auto_completes(given),
        control_mode=ControlMode(given.model_control_mode),
        startup_models=tuple(dict.fromkeys(given.load_model)),
        poll_s=given.repository_poll_secs,
        model_load_threads=given.model_load_thread_count,
        model_load_retries=given.model_load_retry_count,
        rate_limit=rate_limit,
        exit_timeout_s=given.exit_timeout_secs,
        exit_closes_idle=given.exit_closes_idle,
        response_cache_bytes=_cache_bytes(parser, given),
        python_backend=values.python_backend(given.backend_config),
        max_batch_sizes=values.max_batch_sizes(given.backend_config),
        stub_models=dict(given.stub_model),
        backend_directory=given.backend_directory,
        model_config_name=given.model_config_name or "",
        file_override=given.allow_file_override,
        outside_links=given.allow_outside_links,
        execution_warning_s=given.execution_warning_secs,
        client_shared_memory=_given_or(given.allow_client_shm, profile.client_shared_memory),
        profile=profile,
        strict_portable=given.strict_portable,
    )
    return options, _warnings(given)


def _check_addresses(
    parser: CommandParser, enabled: Mapping[str, HttpOptions | GrpcOptions | MetricsOptions | None]
) -> None:
    """Exit with an error if two types of requests have the same address and port."""
    places = [(name, f"{own.address}:{own.port}") for name, own in enabled.items() if own]
    for (name, place), (other, same) in itertools.combinations(places, 2):
        if place == same:
            parser.error(
                f"The server cannot listen to {name} requests and {other} requests at the same "
                f"address and port {place}"
            )


def _given_or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _warnings(given: argparse.Namespace) -> list[str]:
    ignored = command_line.ignored(given)
    return [
        *([f"no effect in the reference server: {', '.join(ignored)}"] if ignored else []),
        *values.warnings(given),
        *trace_config.warnings(given),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server. Return 0 after a clean stop, 1 if it could not start or stop."""
    try:
        options, warnings = parse(sys.argv[1:] if arguments is None else arguments)
    except ServerError as error:
        return _failed(f"creating server: {error.code.value} - {error.message}")
    try:
        logs.configure(options.log, splits=options.profile.splits_log)
    except OSError as error:
        return _failed(f"cannot log to '{options.log.file}': {error.strerror}")
    log.info(
        "Emulating tritonserver %s (--triton-version=%s)",
        options.profile.version,
        options.profile.name,
    )
    if not IS_COMPILED:
        log.warning(
            "reference_server runs interpreted: no compiled modules are installed. A JSON request "
            "of 1,000 numbers takes about 4 ms of CPU time instead of 0.1 ms. Install a wheel, or "
            "install again with a C compiler."
        )
    hints = preflight.hints(options)
    for warning in (*warnings, *hints):
        log.warning("%s", warning)
    if not options.model_repositories:
        return _failed("creating server: Invalid argument - --model-repository must be specified")
    try:
        preflight.check_ports(options)
    except ServerError as error:
        return _failed(error.message)
    keep_freed_memory()
    try:
        # The log keeps the original stderr: its lines already name their source.
        with logs.named_output(), _no_arguments(), _short_switch_interval():
            _run(_serve(options))
    except ServerError as error:
        for hint in hints:  # repeated: the log line is far above, or in a file
            print(f"hint: {hint}", file=sys.stderr)
        return _failed(f"creating server: {error.code.value} - {error.message}")
    except ExitTimeout:  # already logged
        _exit_at_once()
    return 0


def _exit_at_once() -> None:
    """End the process with code 1, although threads of models still run.

    At a normal exit, C++ destroys objects that these threads use, and the process aborts.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)


def keep_freed_memory() -> None:
    """Let malloc keep the memory of large requests for reuse.

    By default, glibc's malloc returns most memory of requests above about 100 KB to the system.
    Getting the pages again one by one costs more than copying the requests
    (docs/results/memory.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # in other C libraries it is missing or has no effect
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


@contextlib.contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Let the event loop wait less for Python threads: a fifth of the default interval."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _no_arguments() -> Iterator[None]:
    """Hide the command line from models: Triton's models find an empty `sys.argv` too."""
    before = sys.argv
    sys.argv = [""]
    try:
        yield
    finally:
        sys.argv = before


async def _serve(options: ServerOptions) -> None:
    await Server(options).serve()


def _failed(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1
