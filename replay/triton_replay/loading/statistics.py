"""Figures that the server reports during a load: statistics of models, and metrics of GPUs."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from triton_replay.loading.loop import Loop
from triton_replay.loading.queries import Failed, Query, send_query

PARTS: Final = ("queue", "compute_input", "compute_infer", "compute_output")
_OTHERS: Final = ("success", "fail", "cache_hit", "cache_miss")

Statistics = Mapping[tuple[str, str], Mapping[str, int]]
"""Counters by model and version."""


# -- statistics


@dataclass(frozen=True)
class ServerSide:
    """The figures of one model between two readings. Times are average microseconds per request.

    The keys of `parts` are PARTS, "cache_hit" and "cache_miss".
    """

    model: str
    version: str
    inferences: int
    executions: int
    successes: int
    failures: int
    total: float
    parts: Mapping[str, float]

    @property
    def overhead(self) -> float:
        """Time at the server that no part of PARTS includes."""
        return max(self.total - sum(self.parts[part] for part in PARTS), 0.0)


def read_statistics(documents: Sequence[Mapping[str, Any]]) -> Statistics:
    """Return the counters in responses of the statistics extension; skip unknown content."""
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
    """Return the figures between two readings, for each model with requests."""
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
    """Return the parts of a request's time at the server, or None without statistics.

    Args:
        model: The model under load.
        sides: Figures of all models.
        composing: Models of an ensemble's steps; their parts are added up.

    Returns:
        Microseconds by part.
    """
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
    """Read a counter; gRPC's JSON has integers of 64 bits as text."""
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else 0


# -- metrics

COLUMNS: Final[Mapping[str, tuple[str, Callable[..., float]]]] = {
    "Avg GPU Utilization": ("nv_gpu_utilization", lambda *values: sum(values) / len(values)),
    "Avg GPU Power Usage": ("nv_gpu_power_usage", lambda *values: sum(values) / len(values)),
    "Max GPU Memory Usage": ("nv_gpu_memory_used_bytes", max),
    "Total GPU Memory": ("nv_gpu_memory_total_bytes", max),
}
"""perf_analyzer's columns, each with its metric and the function that joins a window's values."""
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_DEVICE: Final = re.compile(r'gpu_uuid="([^"]*)"')

Sample = Mapping[str, Mapping[str, float]]
"""Values by metric and device."""


@dataclass(eq=False)
class Scraper:
    """Reads the metrics page at intervals while the load continues.

    Args:
        loop: The load's loop.
        query: The request for the page.
        interval: Nanoseconds between two readings.
    """

    loop: Loop
    query: Query
    interval: int

    def __post_init__(self) -> None:
        self._next = 0
        self._pending = False
        self._samples: list[tuple[int, Sample]] = []
        self.failure = ""
        """The last error of reading the page, or ""."""

    def scrape(self) -> int:
        """Request the page if it is due; return the time of the next request."""
        now = time.perf_counter_ns()
        if now >= self._next:
            self._next = now + self.interval
            if not self._pending:
                self._pending = True
                send_query(self.loop, self.query, self._take)
        return self._next

    def summary(self, start: int, end: int) -> dict[str, dict[str, float]]:
        """Return the value of each column and device between two times."""
        values: defaultdict[str, defaultdict[str, list[float]]]
        values = defaultdict(lambda: defaultdict(list))
        for at, sample in self._samples:
            if start <= at <= end:
                for metric, devices in sample.items():
                    for device, value in devices.items():
                        values[metric][device].append(value)
        return {
            column: {device: of(*found) for device, found in values[metric].items()}
            for column, (metric, of) in COLUMNS.items()
        }

    def _take(self, found: Any) -> None:  # noqa: ANN401  a page or a Failed
        self._pending = False
        if isinstance(found, Failed):
            self.failure = str(found)
        else:
            self._samples.append((time.perf_counter_ns(), read_page(found)))


def read_page(text: str) -> Sample:
    """Return the metrics of GPUs on a page in Prometheus' text format."""
    wanted = {metric for metric, _ in COLUMNS.values()}
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, labels, value in _SAMPLE.findall(text):
        device = _DEVICE.search(labels)
        if name in wanted and device:
            try:
                found[name][device[1]] = float(value)
            except ValueError:
                continue
    return found
