"""The values behind metrics: counters, gauges, histograms. Any thread may move and read them.

What a kind cannot do, and amounts that it refuses, are a ServerError with Triton's text.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from reference_server.core.errors import ServerError, invalid_arg, unsupported
from reference_server.core.telemetry import Distribution, MetricKind


class Series:
    """One value of a family."""

    __slots__ = ("_lock",)

    kind: ClassVar[MetricKind]

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def increment(self, amount: float) -> None:
        """Add `amount`."""
        raise self._lacks("Increment")

    def set(self, value: float) -> None:
        """Replace the value."""
        raise self._lacks("Set")

    def observe(self, value: float) -> None:
        """Count one value of a distribution."""
        raise self._lacks("Observe")

    def value(self) -> float:
        """The value now."""
        raise self._lacks("Value")

    def read(self) -> float | Distribution:
        """What is shown of it."""
        return self.value()

    def _lacks(self, operation: str) -> ServerError:
        return unsupported(f"{_triton_name(self.kind)} does not support {operation}")


class Counter(Series):
    """A sum that never falls."""

    __slots__ = ("_value",)

    kind = MetricKind.COUNTER

    def __init__(self) -> None:
        super().__init__()
        self._value = 0.0

    def increment(self, amount: float) -> None:
        """Add `amount`, which may not be negative."""
        if amount < 0:
            raise invalid_arg(
                f"{_triton_name(self.kind)} can only be incremented monotonically by "
                "non-negative values."
            )
        with self._lock:
            self._value += amount

    def value(self) -> float:
        """The sum so far."""
        return self._value


class Gauge(Series):
    """A value that rises and falls."""

    __slots__ = ("_value",)

    kind = MetricKind.GAUGE

    def __init__(self) -> None:
        super().__init__()
        self._value = 0.0

    def increment(self, amount: float) -> None:
        """Add `amount`."""
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        """Replace the value."""
        with self._lock:
            self._value = value

    def value(self) -> float:
        """The value now."""
        return self._value


class Histogram(Series):
    """How many values lay below each of some bounds, which ascend, and the values' sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    kind = MetricKind.HISTOGRAM

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__()
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound it does not exceed."""
        index = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[index] += 1
            self._sum += value

    def read(self) -> Distribution:
        """All that was observed so far."""
        with self._lock:
            counts, total = self._counts.copy(), self._sum
        *below, count = accumulate(counts)
        return Distribution(count, total, tuple(zip(self._bounds, below, strict=True)))


def _triton_name(kind: MetricKind) -> str:
    return f"TRITONSERVER_METRIC_KIND_{kind.name}"
