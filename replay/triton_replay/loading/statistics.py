"""What the server itself counted between two moments: the statistics extension. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PARTS: Final = ("queue", "compute_input", "compute_infer", "compute_output")
_OTHERS: Final = ("success", "fail", "cache_hit", "cache_miss")

Statistics = Mapping[tuple[str, str], Mapping[str, int]]
"""Of each model and version the sums of its counters."""


@dataclass(frozen=True)
class ServerSide:
    """Of one model what happened in a window. Times are microseconds of a request, on average."""

    model: str
    version: str
    inferences: int
    executions: int
    successes: int
    failures: int
    total: float
    parts: Mapping[str, float]
    """By PARTS, `cache_hit` and `cache_miss`."""

    @property
    def overhead(self) -> float:
        """Of the server's time what is in no part."""
        return max(self.total - sum(self.parts[part] for part in PARTS), 0.0)


def read_statistics(documents: Sequence[Mapping[str, Any]]) -> Statistics:
    """The counters of the answers to some questions; what is not understood is left out."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for document in documents:
        for model in document.get("model_stats", ()):
            sums = {
                "inferences": _number(model.get("inference_count")),
                "executions": _number(model.get("execution_count")),
            }
            inferences = model.get("inference_stats") or {}
            for name in (*PARTS, *_OTHERS):
                entry = inferences.get(name) or {}
                sums[f"{name} count"] = _number(entry.get("count"))
                sums[f"{name} ns"] = _number(entry.get("ns"))
            found[str(model.get("name")), str(model.get("version"))] = sums
    return found


def between(before: Statistics, after: Statistics) -> list[ServerSide]:
    """What happened between two looks, of each model that was asked."""
    found = []
    for (model, version), sums in after.items():
        earlier = before.get((model, version), {})
        grown = {name: value - earlier.get(name, 0) for name, value in sums.items()}
        if grown["success count"] + grown["fail count"] > 0:
            found.append(_server_side(model, version, grown))
    return found


def of_one_request(
    model: str, sides: Sequence[ServerSide], composing: Sequence[str]
) -> dict[str, float] | None:
    """Microseconds of the parts for a request of the client: of an ensemble, of all its steps."""
    own = next((side for side in sides if side.model == model), None)
    if own is None:
        return None
    if not composing:
        return dict(own.parts)
    steps = [side for side in sides if side.model in composing]
    return {
        part: sum(side.parts[part] * side.successes for side in steps) / max(own.successes, 1)
        for part in own.parts
    }


def _server_side(model: str, version: str, grown: Mapping[str, int]) -> ServerSide:
    successes = grown["success count"]

    def average(name: str) -> float:
        return grown[f"{name} ns"] / 1000 / successes if successes else 0.0

    return ServerSide(
        model,
        version,
        grown["inferences"],
        grown["executions"],
        successes,
        grown["fail count"],
        average("success"),
        {name: average(name) for name in (*PARTS, "cache_hit", "cache_miss")},
    )


def _number(value: object) -> int:
    """Of JSON, in which gRPC has 64 bits as text."""
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else 0
