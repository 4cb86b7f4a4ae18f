"""The result of `compare` as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from triton_replay.capture.reader import Capture
from triton_replay.comparing.comparison import Comparison
from triton_replay.comparing.grouping import Group


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the result as JSON. Times are nanoseconds."""
    return {
        "a": _capture(comparison.a),
        "b": _capture(comparison.b),
        "compared": comparison.compared,
        "differing": comparison.differing,
        "only_a": comparison.only_a,
        "only_b": comparison.only_b,
        "groups": [_group(one) for one in comparison.groups],
        "latencies": [
            {"model": times.model, "a": asdict(times.summary_a), "b": asdict(times.summary_b)}
            for times in comparison.times
        ],
    }


def _capture(capture: Capture) -> dict[str, Any]:
    opening = capture.opening
    return {
        "capture": capture.name,
        "complaint": capture.complaint,
        "server": opening.server,
        "started": opening.started,
        "replay_of": opening.settings.get("replay_of"),
        "speed": opening.settings.get("speed"),
    }


def _group(one: Group) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "model": one.model,
        "output": one.output,
        "condition": one.condition,
        "requests": list(one.requests),
        "of": one.of,
        "largest": one.largest,
        "smallest": one.smallest.number,
        "example": one.example,
    }
