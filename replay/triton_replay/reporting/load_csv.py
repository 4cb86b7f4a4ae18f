"""A load as CSV, in the columns of perf_analyzer."""

from __future__ import annotations

import csv
import io

from triton_replay.loading.levels import CONCURRENCY
from triton_replay.loading.load import LoadReport
from triton_replay.loading.statistics import COLUMNS
from triton_replay.loading.windows import Measurement

_PARTS = {
    "Server Queue": "queue",
    "Server Compute Input": "compute_input",
    "Server Compute Infer": "compute_infer",
    "Server Compute Output": "compute_output",
}
_OF_CACHES = {"Server Cache Hit": "cache_hit", "Server Cache Miss": "cache_miss"}


def load_csv(report: LoadReport, *, verbose: bool) -> str:
    """The text of the file; times are microseconds."""
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
            row |= {name: str(round(parts[part])) for name, part in _OF_CACHES.items()}
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
