"""Result files of a load: CSV and JSON in perf_analyzer's formats."""

from __future__ import annotations

import csv
import io
import json
import time
from typing import Any, Final

from triton_replay.loading.levels import CONCURRENCY
from triton_replay.loading.load import LoadReport
from triton_replay.loading.statistics import COLUMNS
from triton_replay.loading.windows import Measurement

_PARTS: Final = {
    "Server Queue": "queue",
    "Server Compute Input": "compute_input",
    "Server Compute Infer": "compute_infer",
    "Server Compute Output": "compute_output",
}
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
        row[f"p{found.percent} latency"] = str(found.value // 1000)
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
