"""The settings of the log and of tracing, which clients can read and change at run time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reference_server.core.cpp import leading_integer
from reference_server.core.errors import invalid_arg, unsupported
from reference_server.core.request import RequestTrace
from reference_server.core.telemetry import Sample
from reference_server.observability.sampling import TraceLevel, TraceMode, Tracer, caller_of
from reference_server.options import LogOptions, TraceOptions

#: The new values of a setting; None resets it to the value of the server or of the command line.
Change = Sequence[str] | None

_LEVELS = (TraceLevel.TIMESTAMPS, TraceLevel.TENSORS)

Value = bool | int | str
#: The functions that change a flag, by the name of its setting.
_FLAGS: dict[str, Callable[[LogOptions, bool], LogOptions]] = {
    "log_info": lambda options, value: replace(options, info=value),
    "log_warning": lambda options, value: replace(options, warning=value),
    "log_error": lambda options, value: replace(options, error=value),
}
_FORMATS = {"default": False, "ISO8601": True}


class LogSettings:
    """The settings of the log, which `apply` applies. Used by one thread."""

    def __init__(self, options: LogOptions, apply: Callable[[LogOptions], None]) -> None:
        self._options = options
        self._apply = apply

    def read(self) -> Mapping[str, Value]:
        """Return all settings, in Triton's order."""
        options = self._options
        return {
            "log_file": options.file,
            "log_info": options.info,
            "log_warning": options.warning,
            "log_error": options.error,
            "log_verbose_level": options.verbose_level,
            "log_format": "ISO8601" if options.iso8601 else "default",
        }

    def update(
        self, changes: Mapping[str, Value] | Iterable[tuple[str, Value]]
    ) -> Mapping[str, Value]:
        """Apply the changes in order, and return all settings. Unknown names are ignored.

        Raises ServerError for the first invalid change; changes before it are kept.
        """
        for name, value in changes.items() if isinstance(changes, Mapping) else changes:
            changed = self._changed(name, value)
            if changed != self._options:
                self._options = changed
                self._apply(changed)
        return self.read()

    def _changed(self, name: str, value: Value) -> LogOptions:
        options = self._options
        if name == "log_file":
            raise unsupported("log file location can not be updated through network protocol")
        if name in _FLAGS:
            if type(value) is not bool:
                raise invalid_arg(f"expect boolean for '{name}'")
            return _FLAGS[name](options, value)
        if name == "log_verbose_level":
            if type(value) is not int:
                raise invalid_arg(f"expect int32 for '{name}'")
            return replace(options, verbose_level=_verbose_level(value))
        if name == "log_format":
            if type(value) is not str:
                raise invalid_arg(f"expect string for '{name}'")
            if value not in _FORMATS:
                raise invalid_arg(f"invalid argument for log_format, got: {value}")
            return replace(options, iso8601=_FORMATS[value])
        return options


def _verbose_level(value: int) -> int:
    """Return the low 32 bits as a signed number, 0 if negative, like Triton."""
    low = value % 2**32
    return low if low < 2**31 else 0


# -- tracing: a model has the settings of the server, except those that were set for the model


@dataclass(frozen=True, slots=True)
class _Own:
    """The values that were set for a model or the server; None is the inherited value."""

    level: TraceLevel | None = None
    rate: int | None = None
    count: int | None = None
    log_frequency: int | None = None


class TraceSettings:
    """The settings of tracing, which select the traced requests. Any thread.

    `is_ready` returns whether the model with the given name is ready.
    """

    def __init__(
        self, options: TraceOptions, mode: TraceMode, is_ready: Callable[[str], bool]
    ) -> None:
        self._is_ready = is_ready
        self._mode = mode
        self._lock = threading.Lock()
        level = TraceLevel.OFF
        for name in options.levels:
            level |= TraceLevel[name]
        self._start = mode.tracer(level, options.rate, options.count, options.log_frequency)
        self._own: dict[str, _Own] = {"": _Own()}  # by model; the empty name is the server
        self._tracers = {"": self._tracer(_Own(), self._start)}
        #: False if no request is traced, which is the usual case and saves the call of `sample`.
        self.is_on = self._start.level is not TraceLevel.OFF

    def read(self, model: str = "") -> Mapping[str, Sequence[str]]:
        """Return the settings of a model or the server. Raises ServerError for an unknown model."""
        self._check(model)
        tracer = self._tracers.get(model) or self._tracers[""]
        levels = [str(level.name) for level in _LEVELS if level & tracer.level]
        return {
            "trace_level": levels or ["OFF"],
            "trace_rate": [str(tracer.rate)],
            "trace_count": [str(tracer.remaining)],
            **self._mode.settings(tracer.log_frequency),
        }

    def update(
        self, changes: Mapping[str, Change] | Iterable[tuple[str, Change]], model: str = ""
    ) -> Mapping[str, Sequence[str]]:
        """Change settings of a model or the server, and return all of them.

        Unknown names are ignored. Raises ServerError for an invalid change; nothing is changed.
        """
        self._check(model)
        with self._lock:
            own = self._own.get(model, _Own())
            before = self._tracers.get(model)
            # The remaining count is kept: a change of the rate must not reset it.
            if own.count is not None and before is not None:
                own = replace(own, count=before.remaining)
            for name, change in changes.items() if isinstance(changes, Mapping) else changes:
                own = _changed(own, name, change)
            self._replace(model, own)
        return self.read(model)

    def sample(
        self, model: str, fields: Callable[[], Iterable[tuple[bytes, bytes]]]
    ) -> RequestTrace | None:
        """Return the trace of a request that was received now; None if it is not traced.

        `fields` returns the request's headers, which may contain the span of the caller.
        """
        tracer = self._tracers.get(model) or self._tracers[""]
        if tracer.level is TraceLevel.OFF:
            return None
        return tracer.sample(caller_of(fields()) if self._mode.follows_callers else None)

    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """Return the metrics of tracing, by the name of their family."""
        return self._mode.samples()

    def close(self) -> None:
        """Write the buffered traces."""
        for tracer in self._tracers.values():
            tracer.retire()
        self._mode.close()

    def _check(self, model: str) -> None:
        if model and not self._is_ready(model):
            raise invalid_arg(f"Request for unknown model : {model}")

    def _replace(self, model: str, own: _Own) -> None:
        settings = self._own | {model: own}
        tracers: dict[str, Tracer] = {}
        if not model:
            tracers[""] = self._valid(self._tracer(own, self._start))
        server = tracers.get("") or self._tracers[""]
        for name in (name for name in settings if name and model in ("", name)):
            if settings[name] == _Own():
                continue
            if name in self._tracers and settings[name].count is not None and name != model:
                settings[name] = replace(settings[name], count=self._tracers[name].remaining)
            tracers[name] = self._valid(self._tracer(settings[name], server))
        # Nothing below can fail.
        retired = [self._tracers[name] for name in tracers if name in self._tracers]
        if model and own == _Own():
            del settings[model]
            removed = self._tracers.pop(model, None)
            retired += [] if removed is None else [removed]
        self._own = settings
        self._tracers.update(tracers)
        self.is_on = any(each.level is not TraceLevel.OFF for each in self._tracers.values())
        for tracer in retired:
            tracer.retire()

    def _tracer(self, own: _Own, inherited: Tracer) -> Tracer:
        return self._mode.tracer(
            inherited.level if own.level is None else own.level,
            inherited.rate if own.rate is None else own.rate,
            inherited.remaining if own.count is None else own.count,
            inherited.log_frequency if own.log_frequency is None else own.log_frequency,
        )

    @staticmethod
    def _valid(tracer: Tracer) -> Tracer:
        if tracer.fault is not None and tracer.level is not TraceLevel.OFF:
            raise invalid_arg(f"Attempting to set invalid trace setting :{tracer.fault}")
        return tracer


def _changed(own: _Own, name: str, change: Change) -> _Own:
    if name == "trace_file":
        raise unsupported("trace file location can not be updated through network protocol")
    if name == "trace_level":
        level = None if change is None else _read_level(change, own.level)
        return replace(own, level=level)
    if name == "trace_rate":
        return replace(own, rate=_read_uint32(name, change))
    if name == "trace_count":
        return replace(own, count=_read_count(name, change))
    if name == "log_frequency":
        return replace(own, log_frequency=_read_uint32(name, change))
    return own


def _read_level(words: Sequence[str], before: TraceLevel | None) -> TraceLevel | None:
    """Return the level that `words` name; `before` if they have no known word."""
    if "OFF" in words:
        if len(words) > 1:
            raise invalid_arg("Expect only one trace level 'OFF' is specified")
        return TraceLevel.OFF
    level = TraceLevel.OFF
    for known in _LEVELS:
        if known.name in words:
            level |= known
    return level or before


def _read_uint32(name: str, change: Change) -> int | None:
    """Return the low 32 bits of a signed number, like Triton."""
    number = _read_int32(name, change, "[ 0, 4294967295 ]")
    return None if number is None else number % 2**32


def _read_count(name: str, change: Change) -> int | None:
    count = _read_int32(name, change, "[ -1, 2147483647 ]")
    if count is not None and change and count < -1:
        raise invalid_arg(f"Unable to parse '{name}'. Expecting value >= -1, got: {change[0]}")
    return count


def _read_int32(name: str, change: Change, shown_range: str) -> int | None:
    if change is None:
        return None
    if len(change) != 1:
        raise invalid_arg(f"expect only 1 value for '{name}'")
    (text,) = change
    number = leading_integer(text)
    if number is None:
        raise invalid_arg(f"Unable to parse '{name}', got: {text}")
    if not -(2**31) <= number < 2**31:
        raise invalid_arg(
            f"Unable to parse '{name}', value is out of range {shown_range}, got: {text}"
        )
    return number
