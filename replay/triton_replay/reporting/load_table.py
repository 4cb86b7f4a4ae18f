"""The result of `load`: text and files in perf_analyzer's forms, and a summary of all loads."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any, Final

from triton_replay.comparing.latencies import MANY, Percentile
from triton_replay.loading.levels import CONCURRENCY
from triton_replay.loading.load import LoadReport
from triton_replay.loading.statistics import COLUMNS, ServerSide
from triton_replay.loading.windows import Measurement, percentiles_of


def measurement_lines(report: LoadReport, one: Measurement) -> Iterator[str]:
    """Yield the lines about one load. Times are microseconds."""
    closed = one.level.mode == CONCURRENCY
    yield (
        f"Request concurrency: {one.level.value:g}"
        if closed
        else f"Request Rate: {one.level.value:g} inference requests per seconds"
    )
    yield "  Client:"
    yield f"    Request count: {one.count}"
    if one.failures:
        yield f"    Failed Request Count: {sum(one.failures.values())}"
        for reason, count in one.failures.items():
            yield f"      {count} times {reason}"
    yield f"    Throughput: {one.inferences_per_second:.6g} infer/sec"
    if report.model is not None and report.model.is_decoupled:
        yield f"    Response Throughput: {one.responses / one.seconds:.6g} infer/sec"
    deviation = f"standard deviation {one.deviation / 1000:.0f} usec"
    yield f"    Avg latency: {one.mean / 1000:.0f} usec ({deviation})"
    for found in one.percentiles:
        if found.percent == _NOT_IN_CSV and one.count < MANY:
            continue
        yield f"    p{found.percent} latency: {found.value // 1000} usec {_interval(found)}"
    for name, times in (
        ("Last response", one.streams.last),
        ("Between responses", one.streams.between),
    ):
        for found in percentiles_of(times, None):
            if found.percent in (50, 99):
                yield f"    {name} p{found.percent}: {found.value // 1000} usec {_interval(found)}"
    if one.good is not None:
        share = one.good / (one.count + sum(one.failures.values()))
        yield f"    Goodput: {one.goodput:.6g} infer/sec ({share:.1%} of requests)"
    if not closed:
        yield f"    Send delay: {one.sending / 1000:.0f} usec from the due time, on average"
    if one.unsent:
        yield f"    Due but not sent: {one.unsent} requests"
    if one.late:
        yield (
            f"    Sent 1 ms or more late by this machine: {one.late} requests, whose latencies "
            "include the delay"
        )
    if not one.is_stable:
        yield "    Not stable: the windows differ by more than --stability-percentage"
    yield from _server_lines(report, one)
    for column, devices in one.metrics.items():
        for device, value in devices.items():
            yield f"    {column}: {device}: {value:g}"


def summary_lines(report: LoadReport) -> Iterator[str]:
    """Yield a line for each load, with the latency that determines stability."""
    what = "Average" if report.percent is None else f"p{report.percent}"
    yield f"Inferences/Second vs. Client {what} Batch Latency"
    for one in report.measurements:
        name = "Concurrency" if one.level.mode == CONCURRENCY else "Request Rate"
        latency = one.mean if report.percent is None else one.percentile(report.percent)
        note = "" if one.is_stable else ", not stable"
        note += "" if one.good is None else f", goodput: {one.goodput:.6g} infer/sec"
        yield (
            f"{name}: {one.level.value:g}, throughput: {one.inferences_per_second:.6g} infer/sec, "
            f"latency {latency / 1000:.0f} usec{note}"
        )


def _server_lines(report: LoadReport, one: Measurement) -> Iterator[str]:
    name = report.model.name if report.model is not None else ""
    own = [side for side in one.server if side.model == name]
    if own:
        yield "  Server:"
        yield from _side_lines(own[0], "    ")
    composing = [side for side in one.server if side.model != name]
    if composing:
        yield "  Composing models:"
    for side in composing:
        yield f"    {side.model}, version: {side.version}"
        yield from _side_lines(side, "      ")


def _side_lines(side: ServerSide, indent: str) -> Iterator[str]:
    yield f"{indent}Inference count: {side.inferences}"
    yield f"{indent}Execution count: {side.executions}"
    yield f"{indent}Successful request count: {side.successes}"
    if side.failures:
        yield f"{indent}Failed request count: {side.failures}"
    parts = {"overhead": side.overhead, **side.parts}
    times = " + ".join(
        f"{name.replace('_', ' ')} {value:.0f} usec"
        for name, value in parts.items()
        if value or not name.startswith("cache")
    )
    yield f"{indent}Avg request latency: {side.total:.0f} usec ({times})"


def _interval(found: Percentile) -> str:
    low, high = ("" if x is None else str(x // 1000) for x in (found.low, found.high))
    return f"[{low}..{high}]"


# -- result files: CSV and JSON in perf_analyzer's formats

_PARTS: Final = {
    "Server Queue": "queue",
    "Server Compute Input": "compute_input",
    "Server Compute Infer": "compute_infer",
    "Server Compute Output": "compute_output",
}
_NOT_IN_CSV: Final = 99.9
"""A percentile that perf_analyzer's CSV does not have."""
_CACHE_PARTS: Final = {"Server Cache Hit": "cache_hit", "Server Cache Miss": "cache_miss"}


# -- CSV


def load_csv(report: LoadReport, *, verbose: bool) -> str:
    """Return the results as CSV with perf_analyzer's columns. Times are microseconds."""
    written = io.StringIO()
    rows = [_row(report, one, verbose) for one in report.measurements]
    writer = csv.DictWriter(written, rows[0].keys() if rows else (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def _row(report: LoadReport, one: Measurement, verbose: bool) -> dict[str, str]:
    assert report.model is not None
    mode = "Concurrency" if one.level.mode == CONCURRENCY else "Request Rate"
    row = {
        mode: f"{one.level.value:g}",
        "Inferences/Second": f"{one.inferences_per_second:.6g}",
    }
    if report.model.is_decoupled:
        row["Response Throughput"] = f"{one.responses / one.seconds:.6g}"
    send, mean = round(one.sending / 1000), round(one.mean / 1000)
    row["Client Send"] = str(send)
    parts = report.parts_of(one)
    if parts is not None:
        inside = {name: round(parts[part]) for name, part in _PARTS.items()}
        row["Network+Server Send/Recv"] = str(max(mean - send - sum(inside.values()), 0))
        row |= {name: str(value) for name, value in inside.items()}
        if report.model.has_cache:
            row |= {name: str(round(parts[part])) for name, part in _CACHE_PARTS.items()}
    row["Client Recv"] = "0"
    for found in one.percentiles:
        if found.percent != _NOT_IN_CSV:
            row[f"p{found.percent} latency"] = str(found.value // 1000)
    if one.good is not None:
        row["Goodput"] = f"{one.goodput:.6g}"
    if verbose:
        if report.percent is None:
            row["Avg latency"] = str(mean)
        row["request/response"] = str(send)
        row["response wait"] = str(max(mean - send, 0))
        if report.collects_metrics:
            row |= {column: _cell(one, column) for column in COLUMNS}
    return row


def _cell(one: Measurement, column: str) -> str:
    devices = one.metrics.get(column, {})
    return "".join(f"{device}:{value:g};" for device, value in devices.items())


# -- JSON


def load_export(report: LoadReport) -> str:
    """Return the times of each request in the format of `--profile-export-file`.

    Times are nanoseconds since 1970.
    """
    offset = time.time_ns() - time.perf_counter_ns()
    document = {
        "experiments": [_experiment(report, one, offset) for one in report.measurements],
        "version": "",
        "service_kind": "triton",
        "endpoint": "",
    }
    return json.dumps(document, separators=(",", ":"))


def _experiment(report: LoadReport, one: Measurement, offset: int) -> dict[str, Any]:
    record = report.record
    assert record is not None
    assert record.responses is not None
    requests = []
    for index in range(one.windows[0].first, one.windows[-1].last):
        if index in record.failed:
            continue
        request: dict[str, Any] = {"timestamp": record.starts[index] + offset}
        if record.sequences:
            request["sequence_id"] = record.sequences[index]
        request["response_timestamps"] = [at + offset for at in record.responses[index]]
        requests.append(request)
    boundaries = [one.windows[0].start, *(window.end for window in one.windows)]
    return {
        "experiment": {"mode": one.level.mode, "value": one.level.value},
        "requests": requests,
        "window_boundaries": [at + offset for at in boundaries],
    }
