"""`--collect-metrics`: what the server's metrics page says meanwhile."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from triton_replay.loading.loop import Loop
from triton_replay.loading.questions import Failed, Question, ask

COLUMNS: Final[Mapping[str, tuple[str, Callable[..., float]]]] = {
    "Avg GPU Utilization": ("nv_gpu_utilization", lambda *values: sum(values) / len(values)),
    "Avg GPU Power Usage": ("nv_gpu_power_usage", lambda *values: sum(values) / len(values)),
    "Max GPU Memory Usage": ("nv_gpu_memory_used_bytes", max),
    "Total GPU Memory": ("nv_gpu_memory_total_bytes", max),
}
"""perf_analyzer's columns: of which metric, and what of its values in a window."""
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_DEVICE: Final = re.compile(r'gpu_uuid="([^"]*)"')

Sample = Mapping[str, Mapping[str, float]]
"""Of each metric its value for each device."""


class Scraper:
    """Asks for the page every so often; the load goes on meanwhile.

    interval: nanoseconds.
    """

    def __init__(self, loop: Loop, question: Question, interval: int) -> None:
        self._loop = loop
        self._question = question
        self._interval = interval
        self._next = 0
        self._asked = False
        self._samples: list[tuple[int, Sample]] = []
        self.failure = ""
        """Why the page could not be read, at last."""

    def scrape(self) -> int:
        """Ask if it is time to; when it will be time again."""
        now = time.perf_counter_ns()
        if now >= self._next:
            self._next = now + self._interval
            if not self._asked:
                self._asked = True
                ask(self._loop, self._question, self._take)
        return self._next

    def summary(self, start: int, end: int) -> dict[str, dict[str, float]]:
        """Of the samples between two times each column's value for each device."""
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
        self._asked = False
        if isinstance(found, Failed):
            self.failure = str(found)
        else:
            self._samples.append((time.perf_counter_ns(), read_page(found)))


def read_page(text: str) -> Sample:
    """The metrics of devices on a page in the format of Prometheus."""
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
