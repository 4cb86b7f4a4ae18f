"""The times of each request of a load, as perf_analyzer's `--profile-export-file` has them."""

from __future__ import annotations

import json
import time
from typing import Any

from triton_replay.loading.load import LoadReport
from triton_replay.loading.windows import Measurement


def load_export(report: LoadReport) -> str:
    """The text of the file; times are nanoseconds since 1970."""
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
