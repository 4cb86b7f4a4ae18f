"""The registry of the metric families of models and of the server.

A family object of a model holds the series that it created. A series is visible until the last
family object that holds the series is freed. The family itself, its type and its first description
remain until the server ends. Triton does the same, except for two objects of one name: in Triton,
freeing the first object removes the series of the other.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import ClassVar

from reference_server.core.errors import ServerError, invalid_arg, unsupported
from reference_server.core.telemetry import (
    Distribution,
    Family,
    FamilyHead,
    Labels,
    MetricKind,
    Sample,
    is_label_name,
)

# Prometheus reserves names that start with two underscores.
_FAMILY_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
#: Families are sorted by type, and then by age.
_KINDS = tuple(MetricKind)


class MetricRegistry:
    """All families of a server. Thread-safe.

    `built_in` are the server's own families, whose series are arguments of `read`.
    """

    def __init__(self, built_in: Iterable[FamilyHead] = ()) -> None:
        self._families = {head.name: _Family(head) for head in built_in}
        self._lock = threading.Lock()

    def hold(self, name: str, description: str, kind: MetricKind) -> FamilyHold:
        """Return a hold on the family `name`, which is created if necessary.

        Raises:
            ServerError: The name is invalid, or belongs to a family of another type.
        """
        if not _FAMILY_NAME.fullmatch(name):
            raise invalid_arg("Invalid metric name")
        with self._lock:
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = _Family(FamilyHead(name, description, kind))
        if family.head.kind is not kind:
            raise invalid_arg("Family name already exists with different type")
        return FamilyHold(family)

    def read(self, built_in: Mapping[str, Sequence[Sample]]) -> list[Family]:
        """Return all families; `built_in` has the server's own series by family name."""
        with self._lock:
            families = sorted(
                self._families.values(), key=lambda family: _KINDS.index(family.head.kind)
            )
        return [
            Family(family.head, [*built_in.get(family.head.name, ()), *family.samples()])
            for family in families
        ]


class FamilyHold:
    """Keeps the series of one family object visible until it is released. Thread-safe."""

    __slots__ = ("_family", "is_held")

    def __init__(self, family: _Family) -> None:
        self._family = family
        self.is_held = True

    def series(self, labels: Mapping[str, str], bounds: Sequence[float] = ()) -> Series:
        """Return the series with these labels, which is created if necessary.

        Args:
            labels: The values of labels by their names.
            bounds: The upper bounds of a histogram's buckets. An existing series keeps its bounds.

        Raises:
            ServerError: A label's name is invalid, or the bounds do not ascend.
        """
        if any(low >= high for low, high in pairwise(bounds)):
            raise invalid_arg("Bucket Boundaries must be strictly sorted")
        if not all(map(is_label_name, labels)):
            raise invalid_arg("Invalid label name")
        return self._family.series(self, tuple(sorted(labels.items())), bounds)

    def release(self) -> None:
        """Release the series. A series without another hold is removed at the next access.

        Takes no lock: the garbage collector can call this on a thread that holds the family's lock.
        """
        self.is_held = False


class _Family:
    """One family and its series, each series with the holds that requested it."""

    def __init__(self, head: FamilyHead) -> None:
        self.head = head
        self._series: dict[Labels, tuple[Series, set[FamilyHold]]] = {}
        self._lock = threading.Lock()

    def series(self, hold: FamilyHold, labels: Labels, bounds: Sequence[float]) -> Series:
        with self._lock:
            self._forget_released()
            found = self._series.get(labels)
            if found is None:
                found = self._series[labels] = _new_series(self.head.kind, bounds), set()
            series, holds = found
            holds.add(hold)
        return series

    def samples(self) -> list[Sample]:
        with self._lock:
            self._forget_released()
            return [Sample(labels, series.read()) for labels, (series, _) in self._series.items()]

    def _forget_released(self) -> None:
        for labels, (_, holds) in tuple(self._series.items()):
            holds.difference_update([hold for hold in holds if not hold.is_held])
            if not holds:
                del self._series[labels]


def _new_series(kind: MetricKind, bounds: Sequence[float]) -> Series:
    if kind is MetricKind.HISTOGRAM:
        return Histogram(bounds)
    return Counter() if kind is MetricKind.COUNTER else Gauge()


class Series:
    """One series of a family. Thread-safe."""

    __slots__ = ("_lock",)

    kind: ClassVar[MetricKind]

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def increment(self, amount: float) -> None:
        """Add `amount`."""
        raise self._lacks("Increment")

    def set(self, value: float) -> None:
        """Set the value."""
        raise self._lacks("Set")

    def observe(self, value: float) -> None:
        """Add one observation to a distribution."""
        raise self._lacks("Observe")

    def value(self) -> float:
        """Return the value."""
        raise self._lacks("Value")

    def read(self) -> float | Distribution:
        """Return the value or distribution for the metrics page."""
        return self.value()

    def _lacks(self, operation: str) -> ServerError:
        return unsupported(f"{_triton_name(self.kind)} does not support {operation}")


class Counter(Series):
    """A sum that never decreases."""

    __slots__ = ("_value",)

    kind = MetricKind.COUNTER

    def __init__(self) -> None:
        super().__init__()
        self._value = 0.0

    def increment(self, amount: float) -> None:
        """Add `amount`. Raises ServerError if it is negative."""
        if amount < 0:
            raise invalid_arg(
                f"{_triton_name(self.kind)} can only be incremented monotonically by "
                "non-negative values."
            )
        with self._lock:
            self._value += amount

    def value(self) -> float:
        return self._value


class Gauge(Series):
    """A value that can increase and decrease."""

    __slots__ = ("_value",)

    kind = MetricKind.GAUGE

    def __init__(self) -> None:
        super().__init__()
        self._value = 0.0

    def increment(self, amount: float) -> None:
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        with self._lock:
            self._value = value

    def value(self) -> float:
        return self._value


class Histogram(Series):
    """The number of values up to each of some ascending bounds, and the sum of all values."""

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
        with self._lock:
            counts, total = self._counts.copy(), self._sum
        *below, count = accumulate(counts)
        return Distribution(count, total, tuple(zip(self._bounds, below, strict=True)))


def _triton_name(kind: MetricKind) -> str:
    return f"TRITONSERVER_METRIC_KIND_{kind.name}"
