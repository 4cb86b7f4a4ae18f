"""`triton-replay load`: measure a model under load, with perf_analyzer's options."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `load`."""
    _add_load(parser.add_argument_group("the load"))
    _add_windows(parser.add_argument_group("the measurement"))
    _add_inputs(parser.add_argument_group("the requests"))
    _add_server(parser.add_argument_group("the server"))
    _add_outputs(parser.add_argument_group("the output"))
    _add_without_effect(parser.add_argument_group("accepted like perf_analyzer, without effect"))


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


def _add_load(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-m", metavar="MODEL", required=True, help="the model")
    add("-x", metavar="VERSION", default="", help="version of the model; default: the newest")
    add("--concurrency-range", metavar="START:END:STEP", help="closed loops: requests in flight")
    add("-t", metavar="N", type=int, help="a closed loop: requests in flight")
    add("--request-rate-range", metavar="START:END:STEP", help="open loops: requests per second")
    distribution_help = "distribution of request intervals; default: constant"
    add("--request-distribution", choices=("constant", "poisson"), help=distribution_help)
    add("--request-intervals", metavar="FILE", type=Path, help="intervals in us, one per line")
    add(
        "--binary-search", action="store_true", help="find the last load that meets -l by bisection"
    )
    sequences_help = "concurrent sequences of an open loop; default: 4"
    add("--num-of-sequences", metavar="N", type=int, default=4, help=sequences_help)
    add("--sequence-length", metavar="N", type=int, help="default: 20, or the length of the data")
    variation_help = "largest deviation of the sequence length; default: 20"
    add(
        "--sequence-length-variation",
        metavar="PERCENT",
        type=float,
        default=20.0,
        help=variation_help,
    )
    range_help = "sequence ids; END is exclusive; default: from 1, without end"
    add("--sequence-id-range", metavar="START:END", default="1", help=range_help)


def _add_windows(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    interval_help = "duration of a window; default: 5000"
    add(
        "-p", "--measurement-interval", metavar="MS", type=float, default=5000.0, help=interval_help
    )
    add(
        "--measurement-mode",
        choices=("time_windows", "count_windows"),
        default="time_windows",
        help="whether windows have a duration or a number of requests; default: time_windows",
    )
    count_help = "requests of a window with count_windows; default: 50"
    add("--measurement-request-count", metavar="N", type=int, default=50, help=count_help)
    add(
        "--request-count", metavar="N", type=int, default=0, help="measure one window of N requests"
    )
    warmup_help = "requests before the first window"
    add("--warmup-request-count", metavar="N", type=int, default=0, help=warmup_help)
    stability_help = "allowed difference of three windows; default: 10"
    add(
        "-s",
        "--stability-percentage",
        metavar="PERCENT",
        type=float,
        default=10.0,
        help=stability_help,
    )
    trials_help = "largest number of windows of a load"
    add("-r", "--max-trials", metavar="N", type=int, default=10, help=trials_help)
    percentile_help = "latency percentile for stability and -l; default: the mean"
    add("--percentile", metavar="N", type=int, help=percentile_help)
    threshold_help = "latency limit; 0: none"
    add("-l", "--latency-threshold", metavar="MS", type=float, default=0.0, help=threshold_help)
    goodput_help = (
        "report the requests per second within a limit in ms: of the latency, or of a stream's "
        "first response, last response and mean time between responses"
    )
    add("--goodput", metavar="MS|first:MS,last:MS,between:MS", help=goodput_help)
    timeout_help = "longest time without any response; default: 300"
    add("--timeout", metavar="SECONDS", type=float, default=300.0, help=timeout_help)


def _add_inputs(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-b", metavar="N", type=int, default=1, help="rows of a request; default: 1")
    add(
        "--input-data",
        metavar="zero|random|FILE|FOLDER",
        action="append",
        help="values of inputs; repeatable with files; default: random",
    )
    shape_help = "shape of an input with free sizes; repeatable"
    add("--shape", metavar="INPUT:SIZE,...", action="append", default=[], help=shape_help)
    length_help = "length of random BYTES elements; default: 128"
    add("--string-length", metavar="N", type=int, default=128, help=length_help)
    add("--string-data", metavar="TEXT", help="value of all BYTES elements")
    parameter_help = "request parameter; repeatable"
    add(
        "--request-parameter",
        metavar="NAME:VALUE:TYPE",
        action="append",
        default=[],
        help=parameter_help,
    )
    formats = ("binary", "json")
    add("--input-tensor-format", choices=formats, default="binary", help="inputs over HTTP")
    add("--output-tensor-format", choices=formats, default="binary", help="outputs over HTTP")
    shm_help = "location of tensors; default: none"
    add("--shared-memory", choices=("none", "system", "cuda"), default="none", help=shm_help)
    size_help = "size of an output row without fixed shape; default: 102400"
    add("--output-shared-memory-size", metavar="BYTES", type=int, default=102_400, help=size_help)


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-u", metavar="HOST:PORT", help="address; default: localhost:8000, gRPC localhost:8001")
    add(
        "-i",
        choices=("http", "grpc"),
        type=str.lower,
        default="http",
        help="protocol; default: http",
    )
    add("--streaming", action="store_true", help="use gRPC streams")
    add(
        "--grpc-compression-algorithm",
        choices=("none", "gzip", "deflate"),
        default="none",
        help="compression of gRPC requests; default: none",
    )
    add(
        "--bls-composing-models",
        metavar="MODEL[:VERSION],...",
        default="",
        help="models that the model calls, to report their statistics",
    )
    header_help = "header of all requests; repeatable"
    add("-H", "--header", metavar="NAME:VALUE", action="append", default=[], help=header_help)


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-f", metavar="FILE", type=Path, help="write CSV with perf_analyzer's columns")
    add("--verbose-csv", action="store_true", help="write more columns")
    export_help = "write the times of each request as JSON"
    add("--profile-export-file", metavar="FILE", type=Path, help=export_help)
    add("--html", metavar="FILE", type=Path, help="write an HTML page with plots")
    hdr_help = "write the latencies of each load to DIR, in HdrHistogram's format"
    add("--hdr", metavar="DIR", type=Path, help=hdr_help)
    add("--collect-metrics", action="store_true", help="read GPU metrics from the metrics page")
    url_help = "the metrics page; default: %(default)s"
    add("--metrics-url", metavar="URL", default="localhost:8002/metrics", help=url_help)
    interval_help = "time between two readings; default: 1000"
    add("--metrics-interval", metavar="MS", type=float, default=1000.0, help=interval_help)


def _add_without_effect(group: argparse._ArgumentGroup) -> None:
    for flags in (("-a", "--async"), ("--sync",), ("--serial-sequences",), ("-v",)):
        group.add_argument(*flags, action="store_true", dest="ignored")
    group.add_argument("--max-threads", metavar="N", dest="ignored")
    group.add_argument("--service-kind", choices=("triton",), dest="ignored")
