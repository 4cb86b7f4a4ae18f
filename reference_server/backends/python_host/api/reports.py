"""The reports of a model: log lines (`Logger`), and metrics (`MetricFamily` and `Metric`).

A family belongs to the server: models that use the same name and labels change the same value. The
metrics page shows a series as long as the family object that created the series is alive. If the
family object is alive when its instance closes, the page shows the series until the server ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from reference_server.backends.python_host.api.native import (
    MODULE,
    Native,
    NativeEnum,
    NotConstructible,
    TritonModelException,
    as_float,
    as_instance,
    as_text,
    failed_in_server,
)
from reference_server.core import forks
from reference_server.core import telemetry as core
from reference_server.core.errors import ServerError, invalid_arg
from reference_server.core.ports import MetricFamilyHold, Metrics, MetricSeries

if TYPE_CHECKING:
    from typing import TypeAlias  # not in Python 3.9

_log = logging.getLogger("reference_server.models")


class LogLevel(NativeEnum):
    """The severity of a log line."""

    __slots__ = ()
    __module__ = MODULE
    __qualname__ = "Logger.LogLevel"

    INFO: ClassVar[LogLevel]
    WARNING: ClassVar[LogLevel]
    ERROR: ClassVar[LogLevel]
    VERBOSE: ClassVar[LogLevel]


LogLevel._enumerate("INFO", "WARNING", "ERROR", "VERBOSE")

_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}
#: The stack level of the caller in the model, as seen from a function of `Logger`.
_CALLER = 2


class Logger(NotConstructible):
    """Functions that write one log line each, with the file and line of the caller.

    The lines go to the standard logger `reference_server.models`. Verbose lines have the level
    DEBUG. All functions are thread-safe and raise TypeError if `message` is not a string.
    """

    __slots__ = ()
    __module__ = MODULE

    LogLevel: TypeAlias = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: LogLevel = LogLevel.INFO) -> None:
        """Write `message` at `level`.

        Args:
            message: The text, or its UTF-8 bytes.
            level: `Logger.INFO`, `WARNING`, `ERROR` or `VERBOSE`. Any other LogLevel writes
                nothing.

        Raises:
            TypeError: An argument has another type.
        """
        text = as_text(message, "message")
        severity = _LEVELS.get(as_instance(level, "level", LogLevel))
        if severity is not None:
            _log.log(severity, text, stacklevel=_CALLER)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        """Write an informational message."""
        _log.info(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        """Write a warning."""
        _log.warning(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        """Write an error."""
        _log.error(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        """Write a verbose message."""
        _log.debug(as_text(message, "message"), stacklevel=_CALLER)


_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
    "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
    "deleted."
)


class MetricKind(NativeEnum):
    """The type of a metric family."""

    __slots__ = ()
    __module__ = MODULE

    COUNTER: ClassVar[MetricKind]
    GAUGE: ClassVar[MetricKind]
    HISTOGRAM: ClassVar[MetricKind]


MetricKind._enumerate("COUNTER", "GAUGE", "HISTOGRAM")


@dataclass(slots=True)
class InstanceMetrics:
    """Access of one instance to the server's metrics; errors name the instance.

    `keeps` is set while the instance closes. Series of a family that is deleted during the close
    stay visible.
    """

    metrics: Metrics
    instance_name: str
    keeps: bool = False
    generation: int = field(default_factory=lambda: forks.generation)

    @property
    def is_here(self) -> bool:
        """False in a forked child, where a lock of the metrics may stay locked for ever."""
        return self.generation == forks.generation

    def check_process(self) -> None:
        """Raise TritonModelException in a forked child, whose metrics no page shows."""
        if not self.is_here:
            raise TritonModelException(forks.NO_SERVER)

    def failure(self, action: str, error: ServerError) -> TritonModelException:
        """Return the exception for a server error in `action`."""
        return failed_in_server(action, self.instance_name, error)


class MetricFamily(Native):
    """All metrics of one name. Several objects may represent the same family.

    Args:
        name: A metric name that Prometheus accepts.
        description: The help text. The first object of a family sets it.
        kind: `MetricFamily.COUNTER`, `GAUGE` or `HISTOGRAM`.

    Raises:
        TritonModelException: The name is invalid, a family of another kind has the name, or there
            is no server.
        TypeError: An argument has another type.
    """

    __slots__ = ("_hold", "_kind", "_server")
    __module__ = MODULE

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    #: None outside of an instance; see `bound_family`.
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
                "Error when creating MetricFamily: found no server; expected a call within "
                "initialize, execute or finalize."
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
        """Return the metric with these labels: a new object for the value that the server stores.

        Args:
            labels: The label names and values, both strings.
            buckets: The upper bounds of a histogram's buckets, ascending and inclusive. They are
                required for a histogram, and not allowed for other kinds.

        Raises:
            TritonModelException: A label or the list of buckets is invalid.
            RuntimeError: A bucket is not a number.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        bounds = self._bounds(buckets)
        self._server.check_process()
        try:
            series = self._hold.series(_checked_labels(labels or {}), bounds)
        except ServerError as error:
            raise self._server.failure("Error when creating Metric", error) from error
        return Metric._of(self._server, self._hold, series)

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
        hold = getattr(self, "_hold", None)  # missing if the constructor raised
        if hold is not None and not self._server.keeps and self._server.is_here:
            hold.release()


class Metric(NotConstructible):
    """One value of a metric family, from `MetricFamily.Metric`. All methods are thread-safe.

    Each method raises TritonModelException if the family's kind does not support the method, or if
    the family object that created the metric has been deleted.
    """

    __slots__ = ("_hold", "_series", "_server")
    __module__ = MODULE

    _server: InstanceMetrics
    _hold: MetricFamilyHold
    _series: MetricSeries

    @classmethod
    def _of(cls, server: InstanceMetrics, hold: MetricFamilyHold, series: MetricSeries) -> Metric:
        self = object.__new__(cls)
        self._server = server
        self._hold = hold
        self._series = series
        return self

    def increment(self, amount: float, /) -> None:
        """Add `amount` to a counter or gauge; for a counter it must not be negative."""
        self._update("increment", as_float(amount, "amount"))

    def set(self, value: float, /) -> None:
        """Set the value of a gauge."""
        self._update("set", as_float(value, "value"))

    def observe(self, value: float, /) -> None:
        """Add an observation to a histogram."""
        self._update("observe", as_float(value, "value"))

    def value(self) -> float:
        """Return the current value of a counter or gauge."""
        try:
            return self._live_series("get").value()
        except ServerError as error:
            raise self._failure("get", error) from error

    def _update(self, verb: str, number: float) -> None:
        try:
            getattr(self._live_series(verb), verb)(number)
        except ServerError as error:
            raise self._failure(verb, error) from error

    def _live_series(self, verb: str) -> MetricSeries:
        self._server.check_process()
        if not self._hold.is_held:
            raise TritonModelException(f"Failed to {verb} metric value: {_DELETED}")
        return self._series

    def _failure(self, verb: str, error: ServerError) -> TritonModelException:
        return self._server.failure(f"Failed to {verb} metric value", error)


def bound_family(server: InstanceMetrics) -> type[MetricFamily]:
    """Return the class `MetricFamily` for the model of one instance."""

    class BoundFamily(MetricFamily):
        __slots__ = ()
        __module__ = MODULE
        _instance = server

    BoundFamily.__name__ = BoundFamily.__qualname__ = MetricFamily.__name__
    return BoundFamily


def _checked_labels(labels: dict[Any, Any]) -> dict[str, str]:
    """Return the labels as Triton's server receives them: through JSON, whose keys are text."""
    sent: dict[str, Any] = json.loads(json.dumps(labels))
    if not all(isinstance(value, str) for value in sent.values()):
        raise invalid_arg("attempt to access JSON non-string as string")
    return sent
