"""`triton-replay load`: measure a model under load, with perf_analyzer's options."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from triton_replay.commands.common import print_message, print_result, write_file, write_hdr
from triton_replay.commands.load_options import PORTS, load_options
from triton_replay.loading.levels import CONCURRENCY, Level
from triton_replay.loading.load import Load, LoadReport
from triton_replay.loading.windows import Measurement, Window
from triton_replay.reporting.load_table import (
    load_csv,
    load_export,
    measurement_lines,
    summary_lines,
)
from triton_replay.reporting.page import load_page

UNSTABLE, INTERRUPTED = 1, 5
"""Exit codes: unstable loads or failed requests; interrupted by Ctrl-C."""


_FORMATS: Final = ("binary", "json")
_OPTIONS: Final[Mapping[str, Sequence[tuple[str, str | Sequence[str] | None, Any, str]]]] = {
    "the load": (
        ("-x", "VERSION", "", "version of the model; default: the newest"),
        ("--concurrency-range", "START:END:STEP", str, "closed loops: requests in flight"),
        ("-t", "N", int, "a closed loop: requests in flight"),
        ("--request-rate-range", "START:END:STEP", str, "open loops: requests per second"),
        (
            *("--request-distribution", ("constant", "poisson"), str),
            "distribution of request intervals; default: constant",
        ),
        ("--request-intervals", "FILE", Path, "intervals in us, one per line"),
        ("--binary-search", None, bool, "find the last load that meets -l by bisection"),
        ("--num-of-sequences", "N", 4, "concurrent sequences of an open loop; default: 4"),
        ("--sequence-length", "N", int, "default: 20, or the length of the data"),
        (
            *("--sequence-length-variation", "PERCENT", 20.0),
            "largest deviation of the sequence length; default: 20",
        ),
        (
            *("--sequence-id-range", "START:END", "1"),
            "sequence ids; END is exclusive; default: from 1, without end",
        ),
    ),
    "the measurement": (
        ("-p --measurement-interval", "MS", 5000.0, "duration of a window; default: 5000"),
        (
            *("--measurement-mode", ("time_windows", "count_windows"), "time_windows"),
            "whether windows have a duration or a number of requests; default: time_windows",
        ),
        (
            *("--measurement-request-count", "N", 50),
            "requests of a window with count_windows; default: 50",
        ),
        ("--request-count", "N", 0, "measure one window of N requests"),
        ("--warmup-request-count", "N", 0, "requests before the first window"),
        (
            *("-s --stability-percentage", "PERCENT", 10.0),
            "allowed difference of three windows; default: 10",
        ),
        ("-r --max-trials", "N", 10, "largest number of windows of a load"),
        ("--percentile", "N", int, "latency percentile for stability and -l; default: the mean"),
        ("-l --latency-threshold", "MS", 0.0, "latency limit; 0: none"),
        (
            *("--goodput", "MS|first:MS,last:MS,between:MS", str),
            "report the requests per second within a limit in ms: of the latency, or of a stream's "
            "first response, last response and mean time between responses",
        ),
        ("--timeout", "SECONDS", 300.0, "longest time without any response; default: 300"),
    ),
    "the requests": (
        ("-b", "N", 1, "rows of a request; default: 1"),
        (
            *("--input-data", "zero|random|FILE|FOLDER", None),
            "values of inputs; repeatable with files; default: random",
        ),
        ("--shape", "INPUT:SIZE,...", [], "shape of an input with free sizes; repeatable"),
        ("--string-length", "N", 128, "length of random BYTES elements; default: 128"),
        ("--string-data", "TEXT", str, "value of all BYTES elements"),
        ("--request-parameter", "NAME:VALUE:TYPE", [], "request parameter; repeatable"),
        ("--input-tensor-format", _FORMATS, "binary", "inputs over HTTP"),
        ("--output-tensor-format", _FORMATS, "binary", "outputs over HTTP"),
        (
            "--shared-memory",
            ("none", "system", "cuda"),
            "none",
            "location of tensors; default: none",
        ),
        (
            *("--output-shared-memory-size", "BYTES", 102_400),
            "size of an output row without fixed shape; default: 102400",
        ),
    ),
    "the server": (
        ("-u", "HOST:PORT", str, "address; default: localhost:8000, gRPC localhost:8001"),
        ("--streaming", None, bool, "use gRPC streams"),
        (
            *("--grpc-compression-algorithm", ("none", "gzip", "deflate"), "none"),
            "compression of gRPC requests; default: none",
        ),
        (
            *("--bls-composing-models", "MODEL[:VERSION],...", ""),
            "models that the model calls, to report their statistics",
        ),
        ("-H --header", "NAME:VALUE", [], "header of all requests; repeatable"),
    ),
    "the output": (
        ("-f", "FILE", Path, "write CSV with perf_analyzer's columns"),
        ("--verbose-csv", None, bool, "write more columns"),
        ("--profile-export-file", "FILE", Path, "write the times of each request as JSON"),
        ("--html", "FILE", Path, "write an HTML page with plots"),
        ("--hdr", "DIR", Path, "write the latencies of each load to DIR, in HdrHistogram's format"),
        ("--collect-metrics", None, bool, "read GPU metrics from the metrics page"),
        (
            *("--metrics-url", "URL", "localhost:8002/metrics"),
            "the metrics page; default: %(default)s",
        ),
        ("--metrics-interval", "MS", 1000.0, "time between two readings; default: 1000"),
    ),
}
"""For each option its flags, its form or its choices, its default or its type, and its help.

An option with neither form nor choices has no value. An option whose default is a list or None is
repeatable.
"""
_WITHOUT_EFFECT: Final = ("-a --async", "--sync", "--serial-sequences", "-v")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `load`."""
    groups = {title: parser.add_argument_group(title) for title in _OPTIONS}
    groups["the load"].add_argument("-m", metavar="MODEL", required=True, help="the model")
    groups["the server"].add_argument(
        *("-i",), choices=PORTS, type=str.lower, default="http", help="protocol; default: http"
    )
    for title, rows in _OPTIONS.items():
        for flags, form, default, text in rows:
            groups[title].add_argument(
                *flags.split(), help=text, **_argument_options(form, default)
            )
    ignored = parser.add_argument_group("accepted like perf_analyzer, without effect")
    for flag in _WITHOUT_EFFECT:
        ignored.add_argument(*flag.split(), action="store_true", dest="ignored")
    ignored.add_argument("--max-threads", metavar="N", dest="ignored")
    ignored.add_argument("--service-kind", choices=("triton",), dest="ignored")


def _argument_options(form: str | Sequence[str] | None, default: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the arguments of `add_argument` for a row of _OPTIONS."""
    if form is None:
        return {"action": "store_true"}
    shown = {"metavar": form} if isinstance(form, str) else {"choices": form}
    if isinstance(default, type):
        return {**shown, "type": default}
    if default is None or isinstance(default, list):
        return {**shown, "action": "append", "default": default}
    return {**shown, "type": type(default), "default": default}


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 if all loads were stable and no request failed.

    Raises:
        ReplayError: An option is invalid, or no request succeeded.
    """
    options = load_options(args)
    report = LoadReport(
        args.u or f"localhost:{PORTS[args.i]}",
        datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        options.plan.stability.percent,
        args.collect_metrics,
    )
    load = Load(options, report, _progress, lambda one: _print_measurement(report, one))
    try:
        load.run()
    except KeyboardInterrupt:
        print_message("interrupted; the loads measured so far are reported")
        return INTERRUPTED
    finally:
        # Write the report even if the server has exited.
        if report.measurements:
            print_result("\n".join(summary_lines(report)))
            _write(args, report)
    if report.scraper is not None and report.scraper.failure:
        print_message(f"--metrics-url: {report.scraper.failure}")
    good = all(one.is_stable and not one.failures for one in report.measurements)
    return 0 if good else UNSTABLE


def _progress(level: Level, windows: Sequence[Window]) -> None:
    last = windows[-1]
    name = "concurrency" if level.mode == CONCURRENCY else "request rate"
    print_message(
        f"{name} {level.value:g}, window {len(windows)}: {last.per_second:.6g} requests/s, "
        f"p50 {last.latency(50) / 1000:.0f} usec, p99 {last.latency(99) / 1000:.0f} usec"
        + (f", {last.failures} failed" if last.failures else "")
    )


def _print_measurement(report: LoadReport, one: Measurement) -> None:
    print_result("\n".join([*measurement_lines(report, one), ""]))


def _write(args: argparse.Namespace, report: LoadReport) -> None:
    if args.f is not None:
        write_file(args.f, load_csv(report, verbose=args.verbose_csv))
    if args.profile_export_file is not None:
        write_file(args.profile_export_file, load_export(report))
    if args.html is not None:
        write_file(args.html, load_page(report))
    if args.hdr is not None:
        for one in report.measurements:
            mode = "concurrency" if one.level.mode == CONCURRENCY else "rate"
            path = args.hdr / f"{mode}-{one.level.value:g}.hgrm"
            write_hdr(path, one.latencies.tolist())
