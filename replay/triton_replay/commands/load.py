"""`triton-replay load`: load on a model, and what the server makes of it; perf_analyzer's flags."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from triton_replay.commands.common import print_result, tell
from triton_replay.commands.load_options import PORTS, load_options
from triton_replay.errors import FileUnwritable
from triton_replay.loading.levels import CONCURRENCY, Level
from triton_replay.loading.load import Load, LoadReport
from triton_replay.loading.windows import Measurement, Window
from triton_replay.reporting.load_csv import load_csv
from triton_replay.reporting.load_export import load_export
from triton_replay.reporting.load_page import load_page
from triton_replay.reporting.load_table import measurement_lines, summary_lines

UNSTABLE, INTERRUPTED = 1, 5
"""Exit codes: a load was not stable, or requests failed; not all loads were measured."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `load`."""
    _add_load(parser.add_argument_group("the load"))
    _add_windows(parser.add_argument_group("the measurement"))
    _add_inputs(parser.add_argument_group("the requests"))
    _add_server(parser.add_argument_group("the server"))
    _add_outputs(parser.add_argument_group("what is written"))
    _add_without_effect(parser.add_argument_group("taken for perf_analyzer's sake, without effect"))


def run(given: argparse.Namespace) -> int:
    """Measure; 0 if all loads were stable and all requests answered well. Raises ReplayError."""
    options = load_options(given)
    report = LoadReport(
        given.u or f"localhost:{PORTS[given.i]}",
        datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        options.plan.stability.percent,
        given.collect_metrics,
    )
    load = Load(options, report, _progress, lambda one: _print_measurement(report, one))
    try:
        load.run()
    except KeyboardInterrupt:
        tell("interrupted: loads that were measured until then are told")
        return INTERRUPTED
    finally:
        # Also of a server that has died.
        if report.measurements:
            print_result("\n".join(summary_lines(report)))
            _write(given, report)
    if report.scraper is not None and report.scraper.failure:
        tell(f"--metrics-url: {report.scraper.failure}")
    good = all(one.is_stable and not one.failures for one in report.measurements)
    return 0 if good else UNSTABLE


def _progress(level: Level, windows: Sequence[Window]) -> None:
    last = windows[-1]
    name = "concurrency" if level.mode == CONCURRENCY else "request rate"
    tell(
        f"{name} {level.value:g}, window {len(windows)}: {last.per_second:.6g} requests/s, "
        f"p50 {last.latency(50) / 1000:.0f} usec, p99 {last.latency(99) / 1000:.0f} usec"
        + (f", {last.failures} failed" if last.failures else "")
    )


def _print_measurement(report: LoadReport, one: Measurement) -> None:
    print_result("\n".join([*measurement_lines(report, one), ""]))


def _write(given: argparse.Namespace, report: LoadReport) -> None:
    if given.f is not None:
        _write_file(given.f, load_csv(report, verbose=given.verbose_csv))
    if given.profile_export_file is not None:
        _write_file(given.profile_export_file, load_export(report))
    if given.html is not None:
        _write_file(given.html, load_page(report))


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileUnwritable(path, error) from error


def _add_load(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-m", metavar="MODEL", required=True)
    add("-x", metavar="VERSION", default="", help="of the model; default: the newest")
    add("--concurrency-range", metavar="START:END:STEP", help="a closed loop: requests in flight")
    add("-t", metavar="N", type=int, help="one concurrency")
    add("--request-rate-range", metavar="START:END:STEP", help="an open loop: requests per second")
    add("--request-distribution", choices=("constant", "poisson"), help="of their intervals")
    add("--request-intervals", metavar="FILE", type=Path, help="microseconds, one a line")
    add("--binary-search", action="store_true", help="for the last that meets -l, not one by one")
    add("--num-of-sequences", metavar="N", type=int, default=4, help="at once, of an open loop")
    add("--sequence-length", metavar="N", type=int, help="default: 20, or that of the data")
    add("--sequence-length-variation", metavar="PERCENT", type=float, default=20.0)
    add("--sequence-id-range", metavar="START:END", default="1", help="END is not one of them")


def _add_windows(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-p", "--measurement-interval", metavar="MS", type=float, default=5000.0)
    add(
        "--measurement-mode",
        choices=("time_windows", "count_windows"),
        default="time_windows",
    )
    add("--measurement-request-count", metavar="N", type=int, default=50, help="of count_windows")
    add("--request-count", metavar="N", type=int, default=0, help="one window of so many requests")
    add("--warmup-request-count", metavar="N", type=int, default=0, help="before the first window")
    add("-s", "--stability-percentage", metavar="PERCENT", type=float, default=10.0)
    add("-r", "--max-trials", metavar="N", type=int, default=10, help="windows of a load, at most")
    add("--percentile", metavar="N", type=int, help="judge by it; default: by the average")
    add("-l", "--latency-threshold", metavar="MS", type=float, default=0.0)
    add("--timeout", metavar="SECONDS", type=float, default=300.0, help="without any answer")


def _add_inputs(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-b", metavar="N", type=int, default=1, help="rows of a request")
    add(
        "--input-data",
        metavar="zero|random|FILE|FOLDER",
        action="append",
        help="default: random; several files are read one after the other",
    )
    add("--shape", metavar="INPUT:SIZE,...", action="append", default=[])
    add("--string-length", metavar="N", type=int, default=128, help="of random BYTES")
    add("--string-data", metavar="TEXT", help="each element of BYTES")
    add("--request-parameter", metavar="NAME:VALUE:TYPE", action="append", default=[])
    add("--input-tensor-format", choices=("binary", "json"), default="binary", help="of HTTP")
    add("--output-tensor-format", choices=("binary", "json"), default="binary", help="of HTTP")
    add("--shared-memory", choices=("none", "system", "cuda"), default="none")
    add("--output-shared-memory-size", metavar="BYTES", type=int, default=102_400)


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-u", metavar="HOST:PORT", help="default: localhost:8000, of gRPC localhost:8001")
    add("-i", choices=("http", "grpc"), type=str.lower, default="http")
    add("--streaming", action="store_true", help="streams of gRPC")
    add("--grpc-compression-algorithm", choices=("none", "gzip", "deflate"), default="none")
    add(
        "--bls-composing-models",
        metavar="MODEL[:VERSION],...",
        default="",
        help="whom the model asks: their statistics are told as well",
    )
    add("-H", "--header", metavar="NAME:VALUE", action="append", default=[])


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-f", metavar="FILE", type=Path, help="CSV, in perf_analyzer's columns")
    add("--verbose-csv", action="store_true", help="more columns")
    add("--profile-export-file", metavar="FILE", type=Path, help="JSON, the times of each request")
    add("--html", metavar="FILE", type=Path, help="a page with plots")
    add("--collect-metrics", action="store_true", help="of the server's metrics page")
    add("--metrics-url", metavar="URL", default="localhost:8002/metrics")
    add("--metrics-interval", metavar="MS", type=float, default=1000.0)


def _add_without_effect(group: argparse._ArgumentGroup) -> None:
    for flags in (("-a", "--async"), ("--sync",), ("--serial-sequences",), ("-v",)):
        group.add_argument(*flags, action="store_true", dest="ignored")
    group.add_argument("--max-threads", metavar="N", dest="ignored")
    group.add_argument("--service-kind", choices=("triton",), dest="ignored")
