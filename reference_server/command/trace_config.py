"""The option `--trace-config`, and the deprecated options that it replaces.

Triton ignores unknown settings; `warnings` reports them.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from reference_server.command.values import unknown, warn
from reference_server.core.cpp import leading_integer
from reference_server.options import OpenTelemetryOptions, TraceOptions

#: The trace levels by their names.
_LEVELS = {
    "OFF": frozenset[str](),
    "TIMESTAMPS": frozenset({"TIMESTAMPS"}),
    "TENSORS": frozenset({"TENSORS"}),
    # Older names.
    **dict.fromkeys(("MIN", "MAX", "TRUE", "ON"), frozenset({"TIMESTAMPS"})),
    "FALSE": frozenset(),
}
#: All known settings.
_TRACE_SETTINGS = frozenset(
    {
        *("level", "rate", "count", "mode", "triton,file", "triton,log-frequency"),
        *("opentelemetry,url", "opentelemetry,resource", "opentelemetry,bsp_max_queue_size"),
        *("opentelemetry,bsp_schedule_delay", "opentelemetry,bsp_max_export_batch_size"),
    }
)
_OPENTELEMETRY = "opentelemetry"
#: Settings of the mode triton, which the trace settings omit in the mode opentelemetry.
_OF_FILES = ("file", "log-frequency")
#: Minimum values: with smaller ones no spans would be sent.
_MINIMUM = {
    "opentelemetry,bsp_max_queue_size": 1,
    "opentelemetry,bsp_schedule_delay": 0,
    "opentelemetry,bsp_max_export_batch_size": 1,
}


def trace_setting(text: str) -> tuple[str, str]:
    """Parse `<setting>=<value>` or `<mode>,<setting>=<value>`: return name and value."""
    head, comma, tail = text.partition(",")
    mode, setting = (head, tail) if comma else ("", head)
    key, _, value = setting.partition("=")
    name = f"{mode}{comma}{key}"
    if comma and not mode:
        raise ArgumentTypeError(
            "No trace mode specified. --trace-config option format is <trace mode>,"
            f"<setting>=<value> or <setting>=<value>. Got {text}"
        )
    if comma and mode.lower() not in ("triton", _OPENTELEMETRY):
        raise _unknown_mode(mode)
    if not key or not value:
        raise ArgumentTypeError(
            f"--trace-config option format is '<trace mode>,<setting>=<value>'. Got {text}"
        )
    if key == "mode" and not comma:
        mode, comma = value, ","
    if comma and mode.lower() not in ("triton", _OPENTELEMETRY):
        raise _unknown_mode(mode)
    if name == "level" and value.upper() not in _LEVELS:
        raise ArgumentTypeError(f"invalid value for trace level option: {value.lower()}")
    if comma:  # the mode's name is case-insensitive
        name, value = ("mode", mode.lower()) if key == "mode" else (f"{mode.lower()},{key}", value)
    if name in ("rate", "count", "triton,log-frequency") or name in _MINIMUM:
        number = leading_integer(value)
        if number is None:
            raise ArgumentTypeError(f"Invalid option value. Got {value}")
        if not -(2**31) <= number < 2**31:
            raise ArgumentTypeError(f"Provided option value is out of bound. Got {value}")
        if number < _MINIMUM.get(name, number):
            raise ArgumentTypeError(f"'{key}' must be at least {_MINIMUM[name]}. Got {value}")
        value = str(number)
    return name, value


def _unknown_mode(mode: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"invalid value for trace mode option: {mode.lower()}. Available options are "
        '"triton" and "opentelemetry"'
    )


def _with_scheme(url: str) -> str:
    return url if "://" in url else f"http://{url}"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # malformed port or IPv6 address
        return False


def trace_options(settings: Sequence[tuple[str, str]]) -> TraceOptions:
    """Combine all settings: the last value of each takes precedence, and levels add up."""
    last = dict(settings)
    levels = [_LEVELS[value.upper()] for name, value in settings if name == "level"]
    return TraceOptions(
        file=last.get("triton,file", ""),
        levels=frozenset[str]().union(*levels),
        rate=int(last.get("rate", "1000")) % 2**32,
        count=int(last.get("count", "-1")),
        log_frequency=int(last.get("triton,log-frequency", "0")) % 2**32,
        opentelemetry=_opentelemetry(settings) if last.get("mode") == _OPENTELEMETRY else None,
    )


def _opentelemetry(settings: Sequence[tuple[str, str]]) -> OpenTelemetryOptions:
    """Return the options of the mode opentelemetry. Resource attributes add up."""
    given = tuple(
        (key, value)
        for mode, _, key, value in ((*name.partition(","), value) for name, value in settings)
        if mode == _OPENTELEMETRY and key not in _OF_FILES
    )
    last = dict(given)
    default = OpenTelemetryOptions()
    return OpenTelemetryOptions(
        url=_with_scheme(last.get("url", default.url)),
        resource={
            name: attribute
            for key, value in given
            if key == "resource"
            for name, _, attribute in [value.partition("=")]
        },
        max_queue_size=int(last.get("bsp_max_queue_size", default.max_queue_size)),
        schedule_delay_ms=int(last.get("bsp_schedule_delay", default.schedule_delay_ms)),
        max_export_batch_size=int(
            last.get("bsp_max_export_batch_size", default.max_export_batch_size)
        ),
        given=given,
    )


#: Deprecated options, each with its setting of `--trace-config` and the form of its value.
DEPRECATED_TRACE_OPTIONS = {
    "trace-file": ("triton,file", "<filepath>"),
    "trace-level": ("level", "<OFF|TIMESTAMPS|TENSORS>"),
    "trace-rate": ("rate", "<rate value>"),
    "trace-count": ("count", "<count value>"),
    "trace-log-frequency": ("triton,log-frequency", "<log frequency value>"),
}


def trace_settings(given: argparse.Namespace) -> list[tuple[str, str]]:
    """Merge the settings of `--trace-config` with those of the deprecated options.

    `--trace-config` takes precedence, except for the level: the levels of both add up. If the
    deprecated option says OFF, there is no level.
    """
    settings: list[tuple[str, str]] = given.trace_config
    keys = {key for key, _ in settings}
    older: list[tuple[str, str]] = []
    for name, (key, _) in DEPRECATED_TRACE_OPTIONS.items():
        deprecated = getattr(given, name.replace("-", "_"))
        older += deprecated
        if deprecated and key in keys:
            what = "rate value" if key == "rate" else key.rpartition(",")[2]
            warn(f"Overriding deprecated '--{name}' in favor of provided {what} in --trace-config!")
    merged = [*older, *settings]
    if any(key == "level" and level.upper() == "OFF" for key, level in older):
        return [(key, value) for key, value in merged if key != "level"]
    return merged


def deprecated_trace_setting(name: str, key: str, form: str) -> Callable[[str], tuple[str, str]]:
    """Return a parser for the deprecated `--name`, which replaces `--trace-config key=form`."""

    def parse_setting(text: str) -> tuple[str, str]:
        warn(
            f"'--{name}' has been deprecated and will be removed in future releases. Please use "
            f"'--trace-config {key}={form} instead."
        )
        return trace_setting(f"{key}={text}")

    return parse_setting


def warnings(given: argparse.Namespace) -> list[str]:
    """Return warnings about unknown settings of `--trace-config`."""
    found: list[str] = []
    for name, value in given.trace_config:
        if name not in _TRACE_SETTINGS:
            found.append(unknown("--trace-config", name, value, _TRACE_SETTINGS))
        elif name == "opentelemetry,url" and not _is_address(_with_scheme(value)):
            found.append(
                f"--trace-config={name}={value}: no spans are sent; expected "
                "'[http://]<host>[:<port>]/<path>', or with https"
            )
    return found
