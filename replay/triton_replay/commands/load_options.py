"""Validation of the options of `triton-replay load`. Each error names its option."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from triton_replay.addresses import Address, parse_address
from triton_replay.commands.common import parse_header
from triton_replay.errors import ReplayError
from triton_replay.loading.grpc_server import GrpcServer
from triton_replay.loading.http_server import HttpServer
from triton_replay.loading.input_data import InputOptions
from triton_replay.loading.levels import CONCURRENCY, RATE, Range, parse_range, read_intervals
from triton_replay.loading.load import LoadOptions
from triton_replay.loading.measuring import Plan
from triton_replay.loading.queries import Server
from triton_replay.loading.windows import Stability

PORTS: Final = {"http": 8000, "grpc": 8001}
_TYPES: Final[dict[str, Callable[[str], object]]] = {
    "int": int,
    "uint": int,
    "double": float,
    "bool": {"true": True, "false": False}.__getitem__,
    "string": str,
}
_LEAST: Final = {
    "measurement_interval": 0.001,
    "measurement_request_count": 1,
    "request_count": 0,
    "warmup_request_count": 0,
    "max_trials": 1,
    "stability_percentage": 0,
    "latency_threshold": 0,
    "num_of_sequences": 1,
    "sequence_length": 1,
    "sequence_length_variation": 0,
    "string_length": 0,
    "output_shared_memory_size": 1,
    "metrics_interval": 1,
    "timeout": 0.001,
}
"""Smallest values of numeric options."""


def load_options(args: argparse.Namespace) -> LoadOptions:
    """Convert the parsed options. Raise ReplayError if one is invalid, or options conflict."""
    _check_numbers(args)
    _check_conflicts(args)
    search = _search(args)
    gaps = read_intervals(args.request_intervals) if args.request_intervals else []
    is_sweep = search is None and not gaps
    distribution = args.request_distribution or ("poisson" if is_sweep else "constant")
    files = [one for one in args.input_data or () if one not in ("zero", "random")]
    has_json = any(not Path(one).is_dir() for one in files)
    first, end = _sequence_ids(args.sequence_id_range)
    counted = args.measurement_mode == "count_windows"
    return LoadOptions(
        model=args.m,
        version=args.x,
        server=_server(args),
        parameters=dict(map(_parameter, args.request_parameter)),
        inputs=InputOptions(
            args.input_data or ["random"],
            dict(map(_shape, args.shape)),
            args.string_length,
            args.string_data,
        ),
        plan=Plan(
            interval=round(args.measurement_interval * 1e6),
            count=args.measurement_request_count if counted else 0,
            total=args.request_count,
            warm_up=args.warmup_request_count,
            stability=Stability(
                args.stability_percentage / 100,
                args.percentile,
                round(args.latency_threshold * 1e6),
                args.max_trials,
            ),
            batch=args.b,
            is_poisson=distribution == "poisson",
            gaps=gaps,
            goals=_goals(args.goodput) if args.goodput else {},
        ),
        search=search,
        is_binary_search=args.binary_search,
        sequences=args.num_of_sequences,
        sequence_length=args.sequence_length or (None if has_json else 20),
        sequence_variation=args.sequence_length_variation / 100,
        sequence_ids=(first, end),
        output_size=None if args.shared_memory == "none" else args.output_shared_memory_size,
        metrics=_metrics(args) if args.collect_metrics else None,
        composing=tuple(map(_composing, filter(None, args.bls_composing_models.split(",")))),
        timeout=args.timeout,
        streaming=args.streaming,
        responses=args.profile_export_file is not None,
    )


def _check_numbers(args: argparse.Namespace) -> None:
    for name, least in _LEAST.items():
        value = getattr(args, name)
        if value is not None and not least <= value < math.inf:
            option = f"--{name.replace('_', '-')}"
            raise ReplayError(f"{option}: found {value:g}, expected at least {least:g}")
    if args.percentile is not None and not 1 <= args.percentile <= 99:
        raise ReplayError(f"--percentile: found {args.percentile}, expected 1 to 99")


def _check_conflicts(args: argparse.Namespace) -> None:
    modes = {
        "--concurrency-range": args.concurrency_range,
        "-t": args.t,
        "--request-rate-range": args.request_rate_range,
        "--request-intervals": args.request_intervals,
    }
    chosen = [option for option, value in modes.items() if value is not None]
    if len(chosen) > 1:
        raise ReplayError(f"{' and '.join(chosen)}: found both, expected one of them")
    if args.streaming and args.i != "grpc":
        raise ReplayError("--streaming: found -i http, expected -i grpc")
    if args.grpc_compression_algorithm != "none" and args.i != "grpc":
        raise ReplayError("--grpc-compression-algorithm: found -i http, expected -i grpc")
    if args.shared_memory == "cuda":
        raise ReplayError(
            "--shared-memory: found cuda, expected none or system; GPU memory is not supported"
        )
    if args.i == "grpc":
        for option in ("input_tensor_format", "output_tensor_format"):
            if getattr(args, option) != "binary":
                text = f"--{option.replace('_', '-')} json: found -i grpc, expected -i http"
                raise ReplayError(text)
    if args.collect_metrics and args.f is not None and not args.verbose_csv:
        raise ReplayError(
            "--collect-metrics with -f: expected --verbose-csv, which adds the columns of metrics"
        )


def _search(args: argparse.Namespace) -> Range | None:
    found = None
    if args.t is not None:
        found = parse_range(str(args.t), "-t", CONCURRENCY)
    if args.concurrency_range is not None:
        found = parse_range(args.concurrency_range, "--concurrency-range", CONCURRENCY)
    if args.request_rate_range is not None:
        found = parse_range(args.request_rate_range, "--request-rate-range", RATE)
    if found is not None and not found.end and not args.latency_threshold:
        raise ReplayError("a range with end 0: expected --latency-threshold")
    if args.binary_search and (found is None or found.start == found.end):
        raise ReplayError("--binary-search: expected a range with a start and an end")
    if args.binary_search and not args.latency_threshold:
        raise ReplayError("--binary-search: expected --latency-threshold")
    return found


def _server(args: argparse.Namespace) -> Callable[[], Server]:
    address = parse_address(args.u or f"localhost:{PORTS[args.i]}", "-u")
    headers = tuple(parse_header(text, "-H") for text in args.header)
    if args.i == "grpc":
        return lambda: GrpcServer(
            address,
            headers,
            streaming=args.streaming,
            compression=args.grpc_compression_algorithm,
        )
    binary = {
        "binary_inputs": args.input_tensor_format == "binary",
        "binary_outputs": args.output_tensor_format == "binary",
    }
    return lambda: HttpServer(address, headers, **binary)


def _metrics(args: argparse.Namespace) -> tuple[Address, str, int]:
    text = args.metrics_url.removeprefix("http://")
    host, slash, page = text.partition("/")
    address = parse_address(host, "--metrics-url")
    return address, f"{slash}{page}" or "/metrics", round(args.metrics_interval * 1e6)


def _sequence_ids(text: str) -> tuple[int, int | None]:
    start, colon, end = text.partition(":")
    try:
        found = int(start), int(end) if colon else None
    except ValueError:
        found = 0, None
    if found[0] < 1 or (found[1] is not None and found[1] <= found[0]):
        raise ReplayError(
            f"--sequence-id-range: found {text!r}, expected START or START:END of numbers above 0"
        )
    return found


def _goals(text: str) -> dict[str, float]:
    """Parse the limits of `--goodput`; return nanoseconds by name."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, limit = part.rpartition(":")
        try:
            found[name or "last"] = float(limit) * 1e6
        except ValueError:
            found[part] = 0.0
    if not found.keys() <= {"first", "last", "between"} or not min(found.values()) > 0:
        raise ReplayError(
            f"--goodput: found {text!r}, expected milliseconds, or first:MS,last:MS,between:MS"
        )
    return found


def _composing(text: str) -> tuple[str, str]:
    """Parse a model and its version, "" for the newest."""
    name, _, version = text.strip().partition(":")
    return name, version


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, sizes = text.rpartition(":")
    parts = sizes.split(",")
    if not colon or not name or not all(part.isascii() and part.isdigit() for part in parts):
        raise ReplayError(f"--shape: found {text!r}, expected INPUT:SIZE,...")
    return name, tuple(int(part) for part in parts)


def _parameter(text: str) -> tuple[str, object]:
    name, _, rest = text.partition(":")
    value, _, kind = rest.rpartition(":")
    try:
        return name, _TYPES[kind](value)
    except (KeyError, ValueError) as error:
        kinds = ", ".join(_TYPES)
        raise ReplayError(
            f"--request-parameter: found {text!r}, expected NAME:VALUE:TYPE, TYPE one of {kinds}"
        ) from error
