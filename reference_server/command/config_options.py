"""The options `--backend-config`, `--cache-config` and `--metrics-config`.

Each is read in Triton's spelling: `<setting>=<value>`, behind a name and a comma where there are
several of what it sets. Settings that mean nothing are taken by Triton without a word, and so they
are no errors here either; `warnings` tells of them, and what may have been meant.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator, Mapping, Sequence

from reference_server.backends.hosts import PYTHON_SETTINGS
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.core.numerals import leading_integer
from reference_server.options import (
    DEFAULT_QUANTILES,
    MAX_BATCH_SIZE,
    LatencyMetrics,
    Quantile,
)


def warnings(given: argparse.Namespace) -> list[str]:
    """What these options say in vain."""
    return [
        *_unknown_backend_settings(given.backend_config),
        *_unknown_metrics_settings(given.metrics_config),
        *_unknown_cache_settings(given.cache_config),
    ]


# ------------------------------------------------------------------------------- --backend-config
_PYTHON = "python"
#: What Triton lets be set for all backends; of these, those of Python do without.
_OF_ALL_BACKENDS = frozenset({MAX_BATCH_SIZE})
_ONNX = "onnxruntime"
_KNOWN = frozenset(
    [*(f"{_PYTHON},{name}" for name in PYTHON_SETTINGS), f"{_ONNX},{MAX_BATCH_SIZE}"]
)


def backend_setting(text: str) -> tuple[str, str, str]:
    """A backend, one of its settings and the value, out of `<backend name>,<setting>=<value>`.

    Without a backend's name it is a setting of all: `<setting>=<value>`.
    """
    if text.startswith(","):
        raise ArgumentTypeError(
            "No backend specified. --backend-config option format is <backend name>,"
            f"<setting>=<value> or <setting>=<value>. Got {text}"
        )
    backend, comma, rest = text.partition(",")
    name, _, value = (rest if comma else text).partition("=")
    if not name or not value:
        raise ArgumentTypeError(
            f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}"
        )
    return (backend if comma else ""), name, value


def python_backend(settings: Sequence[tuple[str, str, str]]) -> Mapping[str, str]:
    """The settings of the Python backend; the last of several values counts."""
    return {name: value for backend, name, value in settings if backend == _PYTHON}


def max_batch_sizes(settings: Sequence[tuple[str, str, str]]) -> Mapping[str, str]:
    """The default of each backend that is given one; "" is for all others."""
    return {backend: value for backend, name, value in settings if name == MAX_BATCH_SIZE}


def _unknown_backend_settings(settings: Sequence[tuple[str, str, str]]) -> list[str]:
    """What `--backend-config` says in vain: (backend, setting, value), of all if it has no name."""
    told: list[str] = []
    for backend, name, value in settings:
        given = f"{backend},{name}" if backend else name
        if backend not in ("", _PYTHON, _ONNX):
            alike = nearest(backend, [_PYTHON, _ONNX])
            told.append(
                f"no effect in the reference server: --backend-config={given}={value}: there is no "
                f"backend '{backend}' with settings here, only '{_PYTHON}' and '{_ONNX}'{alike}"
            )
        elif given not in (*_KNOWN, *_OF_ALL_BACKENDS):
            told.append(unknown("--backend-config", given, value, _KNOWN))
    return told


# --------------------------------------------------------------------------------- --cache-config
LOCAL_CACHE = "local"
#: Where Triton looks for caches other than its local one; here there are none.
CACHE_DIRECTORY = "/opt/tritonserver/caches"
_OF_CACHE = frozenset({f"{LOCAL_CACHE},size"})

# Triton's cache keeps its books in these bytes, too, and cannot be made of fewer.
_SMALLEST_CACHE = 192
_LARGEST_CACHE = 2**63 - 1


def cache_setting(text: str) -> tuple[str, str, str]:
    """A cache, one of its settings and the value, out of `<cache name>,<setting>=<value>`."""
    cache, comma, rest = text.partition(",")
    if not cache or not comma:
        raise ArgumentTypeError(
            "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. "
            f"Got {text}"
        )
    name, _, value = rest.partition("=")
    if not name or not value:
        raise ArgumentTypeError(
            f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}"
        )
    return cache, name, value


def cache_byte_size(
    settings: Sequence[tuple[str, str, str]], directory: str = CACHE_DIRECTORY
) -> int | None:
    """How large the cache is; None if there is none. The last of several values counts.

    Raises ServerError where Triton cannot make the cache.
    """
    caches = {cache for cache, _, _ in settings}
    if not caches:
        return None
    if len(caches) > 1:
        raise invalid_arg(
            "found multiple cache configurations, but only a single cache is currently supported"
        )
    (cache,) = caches
    if cache != LOCAL_CACHE:
        raise invalid_arg(
            f"unable to find 'libtritoncache_{cache}.so' for cache. Searched: {directory}; the "
            f"reference server has no cache but '{LOCAL_CACHE}'"
        )
    given = {name: value for _, name, value in settings}
    if "size" not in given:
        raise invalid_arg(
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field."
        )
    return _cache_size(given["size"])


def _cache_size(text: str) -> int:
    size = leading_integer(text)
    if size is None or abs(size) >= 2**64:
        raise _refused_cache("stoull")
    if not 0 <= size <= _LARGEST_CACHE:  # below zero it wraps around
        raise _refused_cache("failed to allocate buffer")
    if size < _SMALLEST_CACHE:
        raise _refused_cache(
            "Could not initialize buffer in basic_managed_external_buffer constructor"
        )
    return size


def _refused_cache(reason: str) -> ServerError:
    return internal(f"Failed to initialize LocalCache: {reason}")


def _unknown_cache_settings(settings: Sequence[tuple[str, str, str]]) -> list[str]:
    """What `--cache-config` says in vain of a cache that is there."""
    return [
        unknown("--cache-config", f"{cache},{name}", value, _OF_CACHE)
        for cache, name, value in settings
        if cache == LOCAL_CACHE and f"{cache},{name}" not in _OF_CACHE
    ]


# ------------------------------------------------------------------------------- --metrics-config
_METRICS_SWITCHES = frozenset({"counter_latencies", "histogram_latencies", "summary_latencies"})
_METRICS_SETTINGS = frozenset({"summary_quantiles", *_METRICS_SWITCHES})

# What C++ reads as a number: what leads the text counts.
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")


def metrics_setting(text: str) -> tuple[str, str]:
    """A setting and its value, out of `<setting>=<value>`."""
    name, _, value = text.partition("=")
    if not name or not value or "," in name:
        raise ArgumentTypeError(f"--metrics-config option format is <setting>=<value>. Got {text}")
    return name, value


def latency_metrics(settings: Sequence[tuple[str, str]]) -> LatencyMetrics:
    """Which latencies are told, and how. Triton overlooks names and values that it does not know.

    Each setting is a switch that stays where it was once put.
    """
    quantiles: tuple[Quantile, ...] = ()
    for name, value in settings:
        if name == "summary_quantiles":
            quantiles = tuple(_quantiles(value))
    return LatencyMetrics(
        counters=("counter_latencies", "false") not in settings,
        summaries=("summary_latencies", "true") in settings,
        histograms=("histogram_latencies", "true") in settings,
        quantiles=quantiles or DEFAULT_QUANTILES,
    )


def _quantiles(text: str) -> Iterator[Quantile]:
    for pair in text.split(","):
        quantile, _, error = pair.partition(":")
        read = _NUMBER.match(quantile), _NUMBER.match(error)
        if read[0] is not None and read[1] is not None:
            yield Quantile(float(read[0][1]), float(read[1][1]))


def _unknown_metrics_settings(settings: Sequence[tuple[str, str]]) -> list[str]:
    """What `--metrics-config` says in vain."""
    told: list[str] = []
    for name, value in settings:
        if name not in _METRICS_SETTINGS:
            told.append(unknown("--metrics-config", name, value, _METRICS_SETTINGS))
        elif name in _METRICS_SWITCHES and value not in ("true", "false"):
            told.append(
                f"no effect in the reference server: --metrics-config={name}={value}: the value "
                "must be 'true' or 'false'"
            )
    return told


# ------------------------------------------------------------------------------- unknown settings


def unknown(option: str, name: str, value: str, known: Iterable[str]) -> str:
    """That `name` of `option` means nothing, and what may have been meant."""
    names = {other.rpartition(",")[2]: other for other in sorted(known)}
    # What is alike is the setting itself: it may stand at the wrong place, too.
    alike = nearest(name.rpartition(",")[2], names, shown=names)
    return (
        f"no effect in the reference server: {option}={name}={value}: unknown setting '{name}'"
        + (alike or f"; known are {', '.join(names.values())}")
    )


def nearest(name: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """`; did you mean 'X'?` with the one of `known` that looks most like `name`; empty if none.

    `shown` says what stands for it in that sentence.
    """
    alike = difflib.get_close_matches(name, list(known), n=1)
    if not alike:
        return ""
    return f"; did you mean '{alike[0] if shown is None else shown[alike[0]]}'?"


def warn(text: str) -> None:
    """On stderr, since it comes before it is known where the log is."""
    print(f"Warning: {text}", file=sys.stderr)
