"""The families of metrics: those that models make, in one page with the server's own.

A family object of a model holds the series that were made through it. They are shown until the
last object that holds them is gone; the family itself, its kind and its first description stay
until the server ends. All this is as in Triton, but for two objects of one name: there the first
that goes takes the series of the others along.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from reference_server.core.errors import invalid_arg
from reference_server.core.telemetry import (
    Family,
    FamilyHead,
    Labels,
    MetricKind,
    Sample,
    is_label_name,
)
from reference_server.observability.series import Counter, Gauge, Histogram, Series

# Two underscores in front are Prometheus' own.
_FAMILY_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
#: The order of the page: by kind, and then by age.
_KINDS = tuple(MetricKind)


class MetricRegistry:
    """All families of a server. Any thread.

    `built_in` are those whose series the server itself gives to each `read`.
    """

    def __init__(self, built_in: Iterable[FamilyHead] = ()) -> None:
        self._families = {head.name: _Family(head) for head in built_in}
        self._lock = threading.Lock()

    def hold(self, name: str, description: str, kind: MetricKind) -> FamilyHold:
        """A hold on the family of that name, which is made if there is none.

        Raises ServerError if no family can have the name, or one of another kind has it.
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
        """All families as they are now, with the server's own series by the family's name."""
        with self._lock:
            families = sorted(
                self._families.values(), key=lambda family: _KINDS.index(family.head.kind)
            )
        return [
            Family(family.head, [*built_in.get(family.head.name, ()), *family.samples()])
            for family in families
        ]


class FamilyHold:
    """What keeps the series of one family object on show, until it is released. Any thread."""

    __slots__ = ("_family", "is_held")

    def __init__(self, family: _Family) -> None:
        self._family = family
        self.is_held = True

    def series(self, labels: Mapping[str, str], bounds: Sequence[float] = ()) -> Series:
        """The family's series with these labels; `bounds` are the buckets of a histogram.

        A series that is there already keeps the bounds that it has. Raises ServerError if a
        label's name is none, or the bounds do not ascend.
        """
        if any(low >= high for low, high in pairwise(bounds)):
            raise invalid_arg("Bucket Boundaries must be strictly sorted")
        if not all(map(is_label_name, labels)):
            raise invalid_arg("Invalid label name")
        return self._family.series(self, tuple(sorted(labels.items())), bounds)

    def release(self) -> None:
        """Let go of the series; those that nobody else holds are shown no more.

        Takes no lock: the garbage collector may call this at any point of any thread, also where
        that thread holds the family's. Whoever looks at the family next clears up.
        """
        self.is_held = False


class _Family:
    """One family and its series, each with the holds that made it or asked for it."""

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
