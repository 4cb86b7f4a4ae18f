"""The option `--trace-config`, and the older options that it stands for.

Settings that mean nothing are taken by Triton without a word; `warnings` tells of them.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from reference_server.command.config_options import unknown, warn
from reference_server.core.numerals import leading_integer
from reference_server.options import OpenTelemetryOptions, TraceOptions

#: What the words for a level mean; two are older names.
_LEVELS = {
    "OFF": frozenset[str](),
    "TIMESTAMPS": frozenset({"TIMESTAMPS"}),
    "TENSORS": frozenset({"TENSORS"}),
    "MIN": frozenset({"TIMESTAMPS"}),
    "MAX": frozenset({"TIMESTAMPS"}),
}
#: All settings that mean something.
_TRACE_SETTINGS = frozenset(
    {
        *("level", "rate", "count", "mode", "triton,file", "triton,log-frequency"),
        *("opentelemetry,url", "opentelemetry,resource", "opentelemetry,bsp_max_queue_size"),
        *("opentelemetry,bsp_schedule_delay", "opentelemetry,bsp_max_export_batch_size"),
    }
)
_OPENTELEMETRY = "opentelemetry"
#: Those of the triton mode that the other one does not show, even if they are given to it.
_OF_FILES = ("file", "log-frequency")
#: The least that these can be, and still send anything.
_LEAST = {
    "opentelemetry,bsp_max_queue_size": 1,
    "opentelemetry,bsp_schedule_delay": 0,
    "opentelemetry,bsp_max_export_batch_size": 1,
}


def trace_setting(text: str) -> tuple[str, str]:
    """The name and the value in `<setting>=<value>` or `<mode>,<setting>=<value>`."""
    name, _, value = text.partition("=")
    mode, comma, key = name.rpartition(",")
    if not key or not value:
        raise ArgumentTypeError(
            "--trace-config option format is '<setting>=<value>' or '<mode>,<setting>=<value>'. "
            f"Got {text}"
        )
    if key == "mode" and not comma:
        mode, comma = value, ","
    if comma and mode.lower() not in ("triton", _OPENTELEMETRY):
        raise ArgumentTypeError(
            f"invalid value for trace mode option: {mode.lower()}. Available options are "
            '"triton" and "opentelemetry"'
        )
    if name == "level" and value.upper() not in _LEVELS:
        raise ArgumentTypeError(f"invalid value for trace level option: {value.lower()}")
    if comma:  # the mode's name may be written in any letters
        name, value = ("mode", mode.lower()) if key == "mode" else (f"{mode.lower()},{key}", value)
    if name in ("rate", "count", "triton,log-frequency") or name in _LEAST:
        number = leading_integer(value)
        if number is None:
            raise ArgumentTypeError(f"Invalid option value. Got {value}")
        if not -(2**31) <= number < 2**31:
            raise ArgumentTypeError(f"Provided option value is out of bound. Got {value}")
        if number < _LEAST.get(name, number):
            raise ArgumentTypeError(f"'{key}' must be at least {_LEAST[name]}. Got {value}")
        value = str(number)
    if name == "opentelemetry,url" and not _is_address(_with_scheme(value)):
        raise ArgumentTypeError(
            f"'url' must be '[http://]<host>[:<port>]/<path>', or with https. Got {value}"
        )
    return name, value


def _with_scheme(url: str) -> str:
    return url if "://" in url else f"http://{url}"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port, or of an address of IPv6
        return False


def trace_options(settings: Sequence[tuple[str, str]]) -> TraceOptions:
    """What the settings say together; as in Triton, the last of each counts, and levels add up."""
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
    """Of several attributes of a resource all count, of other settings the last."""
    told = tuple(
        (key, value)
        for mode, _, key, value in ((*name.partition(","), value) for name, value in settings)
        if mode == _OPENTELEMETRY and key not in _OF_FILES
    )
    last = dict(told)
    default = OpenTelemetryOptions()
    return OpenTelemetryOptions(
        url=_with_scheme(last.get("url", default.url)),
        resource={
            name: attribute
            for key, value in told
            if key == "resource"
            for name, _, attribute in [value.partition("=")]
        },
        max_queue_size=int(last.get("bsp_max_queue_size", default.max_queue_size)),
        schedule_delay_ms=int(last.get("bsp_schedule_delay", default.schedule_delay_ms)),
        max_export_batch_size=int(
            last.get("bsp_max_export_batch_size", default.max_export_batch_size)
        ),
        told=told,
    )


#: Deprecated options for settings of `--trace-config`.
DEPRECATED_TRACE_OPTIONS = {
    "trace-file": ("triton,file", "<filepath>"),
    "trace-level": ("level", "<OFF|TIMESTAMPS|TENSORS>"),
    "trace-rate": ("rate", "<rate value>"),
    "trace-count": ("count", "<count value>"),
    "trace-log-frequency": ("triton,log-frequency", "<log frequency value>"),
}


def trace_settings(given: argparse.Namespace) -> list[tuple[str, str]]:
    """The settings of tracing: those of `--trace-config` count for more than the older names.

    But for a level: the older names and the new add up, unless an older name says OFF.
    """
    told: list[tuple[str, str]] = given.trace_config
    keys = {key for key, _ in told}
    older: list[tuple[str, str]] = []
    for name, (key, _) in DEPRECATED_TRACE_OPTIONS.items():
        settings = getattr(given, name.replace("-", "_"))
        older += settings
        if settings and key in keys:
            what = "rate value" if key == "rate" else key.rpartition(",")[2]
            warn(f"Overriding deprecated '--{name}' in favor of provided {what} in --trace-config!")
    merged = [*older, *told]
    if any(key == "level" and level.upper() == "OFF" for key, level in older):
        return [(key, value) for key, value in merged if key != "level"]
    return merged


def deprecated_trace_setting(name: str, key: str, form: str) -> Callable[[str], tuple[str, str]]:
    """What reads the deprecated `--name`, which stands for `--trace-config key=form`."""

    def parse_setting(text: str) -> tuple[str, str]:
        warn(
            f"'--{name}' has been deprecated and will be removed in future releases. Please use "
            f"'--trace-config {key}={form} instead."
        )
        return trace_setting(f"{key}={text}")

    return parse_setting


def warnings(given: argparse.Namespace) -> list[str]:
    """What `--trace-config` says in vain."""
    return [
        unknown("--trace-config", name, value, _TRACE_SETTINGS)
        for name, value in given.trace_config
        if name not in _TRACE_SETTINGS
    ]
