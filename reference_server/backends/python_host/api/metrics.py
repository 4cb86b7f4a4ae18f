"""`MetricFamily` and its metrics: what models count, shown on the server's metrics port.

A family belongs to the server: models that use one name and one set of labels move one value. Its
series are shown for as long as the family object lives that they were made through, or for ever
if it still does when its instance closes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from reference_server.backends.python_host.api.arguments import as_float, as_instance, as_text
from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    NativeEnum,
    NotConstructible,
    TritonModelException,
    failed_in_server,
)
from reference_server.core import forks
from reference_server.core import telemetry as core
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.ports import MetricFamilyHold, Metrics, MetricSeries

_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)


class MetricKind(NativeEnum):
    """What a family's values are."""

    __slots__ = ()
    __module__ = MODULE

    COUNTER: ClassVar[MetricKind]
    GAUGE: ClassVar[MetricKind]
    HISTOGRAM: ClassVar[MetricKind]


MetricKind._enumerate("COUNTER", "GAUGE", "HISTOGRAM")


@dataclass(slots=True)
class InstanceMetrics:
    """One instance's way to the server's metrics; errors name the instance.

    With `keeps` set, families that its model drops stay as they are: the instance is closing.
    """

    metrics: Metrics
    instance_name: str
    keeps: bool = False
    generation: int = field(default_factory=lambda: forks.generation)

    @property
    def is_here(self) -> bool:
        """False in a forked copy: there a lock of the metrics may never be free."""
        return self.generation == forks.generation

    def check_process(self) -> None:
        """Raise TritonModelException in a forked copy, whose metrics nobody shows."""
        if not self.is_here:
            raise TritonModelException(forks.NO_SERVER)

    def failure(self, action: str, error: ServerError) -> TritonModelException:
        """What the model is told of an error that the server found in `action`."""
        return failed_in_server(action, self.instance_name, error)


class MetricFamily(Native):
    """The metrics of one name; several objects may stand for one family.

    The description is the first object's. Raises TritonModelException if Prometheus does not let
    a family have the name, or another kind of family has it already.
    """

    __slots__ = ("_hold", "_kind", "_server")
    __module__ = MODULE

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    #: None outside an instance; see `bound_family`.
    _instance: ClassVar[InstanceMetrics | None] = None
    _server: InstanceMetrics
    _hold: MetricFamilyHold
    _kind: MetricKind

    def __init__(self, name: str | bytes, description: str | bytes, kind: MetricKind) -> None:
        name = as_text(name, "name")
        description = as_text(description, "description")
        kind = as_instance(kind, "kind", MetricKind)
        if self._instance is None:
            raise TritonModelException(
                "Error when creating MetricFamily: metrics belong to a server, which is there in "
                "initialize, execute and finalize only."
            )
        self._server = self._instance
        self._server.check_process()
        self._kind = kind
        try:
            if kind.name not in core.MetricKind.__members__:
                raise invalid_arg("Unknown metric kind")
            self._hold = self._server.metrics.hold(name, description, core.MetricKind[kind.name])
        except ServerError as error:
            raise self._server.failure("Error when creating MetricFamily", error) from error

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The family's metric with these labels: a new object, but the value that is there.

        `buckets` are the upper bounds of a histogram's buckets, ascending and each included; no
        other kind may have them. Raises TritonModelException if an argument is not as it should be.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        bounds = self._bounds(buckets)
        self._server.check_process()
        try:
            series = self._hold.series(_checked_labels(labels or {}), bounds)
        except ServerError as error:
            raise self._server.failure("Error when creating Metric", error) from error
        return Metric._made(self._server, self._hold, series)

    def _bounds(self, buckets: object) -> list[float]:
        if buckets is None:
            if self._kind == MetricKind.HISTOGRAM:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            return []
        if not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self._kind is not MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        try:
            return [as_float(bucket, "buckets") for bucket in buckets]
        except TypeError as error:
            raise RuntimeError(str(error)) from None

    def __del__(self) -> None:
        hold = getattr(self, "_hold", None)  # there is none if the constructor has refused
        if hold is not None and not self._server.keeps and self._server.is_here:
            hold.release()


class Metric(NotConstructible):
    """One value of a family. Any thread.

    Each method raises TritonModelException where the family's kind does not have it, and once the
    family object that the metric was made through is gone.
    """

    __slots__ = ("_hold", "_series", "_server")
    __module__ = MODULE

    _server: InstanceMetrics
    _hold: MetricFamilyHold
    _series: MetricSeries

    @classmethod
    def _made(cls, server: InstanceMetrics, hold: MetricFamilyHold, series: MetricSeries) -> Metric:
        self = object.__new__(cls)
        self._server = server
        self._hold = hold
        self._series = series
        return self

    def increment(self, amount: float, /) -> None:
        """Add `amount`: a counter's may not be negative, a histogram has no increments."""
        self._move("increment", as_float(amount, "amount"))

    def set(self, value: float, /) -> None:
        """Replace the value of a gauge."""
        self._move("set", as_float(value, "value"))

    def observe(self, value: float, /) -> None:
        """Count `value` in a histogram."""
        self._move("observe", as_float(value, "value"))

    def value(self) -> float:
        """The value of a counter or gauge now."""
        try:
            return self._shown("get").value()
        except ServerError as error:
            raise self._failure("get", error) from error

    def _move(self, verb: str, number: float) -> None:
        try:
            getattr(self._shown(verb), verb)(number)
        except ServerError as error:
            raise self._failure(verb, error) from error

    def _shown(self, verb: str) -> MetricSeries:
        self._server.check_process()
        if not self._hold.is_held:
            raise TritonModelException(f"Failed to {verb} metric value: {_DELETED}")
        return self._series

    def _failure(self, verb: str, error: ServerError) -> TritonModelException:
        return self._server.failure(f"Failed to {verb} metric value", error)


def bound_family(server: InstanceMetrics) -> type[MetricFamily]:
    """`MetricFamily` as the model of one instance sees it."""

    class BoundFamily(MetricFamily):
        __slots__ = ()
        __module__ = MODULE
        _instance = server

    BoundFamily.__name__ = BoundFamily.__qualname__ = MetricFamily.__name__
    return BoundFamily


def _checked_labels(labels: dict[Any, Any]) -> dict[str, str]:
    """The labels as they arrive in Triton's server: by way of JSON, whose keys are text."""
    sent: dict[str, Any] = json.loads(json.dumps(labels))
    if not all(isinstance(value, str) for value in sent.values()):
        raise invalid_arg("attempt to access JSON non-string as string")
    return sent
