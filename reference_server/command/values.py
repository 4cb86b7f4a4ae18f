"""Parsers for the values of options, with Triton's texts.

The values of `--backend-config`, `--cache-config` and `--metrics-config` are `<setting>=<value>`,
or `<name>,<setting>=<value>`, as in Triton. Triton ignores unknown settings. This server accepts
them too; `warnings` reports them and suggests the nearest known setting.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from reference_server.backends.hosts import PYTHON_SETTINGS
from reference_server.core.cpp import leading_integer
from reference_server.core.errors import ServerError, internal, invalid_arg
from reference_server.gateway.forwarding import HeaderForwarding
from reference_server.options import DEFAULT_QUANTILES, MAX_BATCH_SIZE, LatencyMetrics, Quantile

# C++ parses the number at the start of a text and ignores the rest.
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def boolean(text: str) -> bool:
    """Parse one of Triton's words for true and false."""
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(
            f"invalid value for bool option: {text}, expected true or false"
        )
    return value


def stub_model(text: str) -> tuple[str, str]:
    """Parse `NAME=MODULE:FUNCTION`: a model, and the function that answers for it."""
    name, _, function = text.partition("=")
    module, _, attribute = function.partition(":")
    if not (name and module and attribute):
        raise _invalid(text, "NAME=MODULE:FUNCTION, such as detector=stubs:detect")
    return name, function


def number(text: str, bits: int = 32) -> int:
    """Parse the signed integer of at most `bits` bits at the start of a text, as Triton does."""
    value = leading_integer(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise argparse.ArgumentTypeError(f"Provided option value is out of bound. Got {text}")
    return value


def long_number(text: str) -> int:
    """Parse the signed integer of at most 64 bits at the start of a text."""
    return number(text, 64)


def limit(text: str) -> int:
    """Parse the integer at the start of a text. 0 is no limit, and negative integers become 0."""
    return max(0, number(text))


def at_least(low: int) -> Callable[[str], int]:
    """Return a parser of the integer at the start of a text. Smaller integers become `low`."""
    return lambda text: max(low, number(text))


def verbosity(text: str) -> int:
    """Parse the verbosity: an integer, or one of Triton's words for true (1) and false (0)."""
    value = _BOOLEANS.get(text.lower())
    return number(text) if value is None else int(value)


def port(text: str) -> int:
    """Parse the number of a port."""
    value = number(text)
    if not 0 < value < 1 << 16:
        raise _invalid(text, "1 to 65535")
    return value


def fraction(text: str) -> float:
    """Parse the number at the begin of a text."""
    found = _NUMBER.match(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text}")
    return float(found[1])


def pair(separator: str, second: Callable[[str], object] = number) -> Callable[[str], str]:
    """Return a parser of `<integer><separator><value>`, which returns the text."""

    def parse_pair(text: str) -> str:
        left, found, right = text.partition(separator)
        if not found:
            raise argparse.ArgumentTypeError(
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> "
                f"argument requires format <first>{separator}<second>. Found: {text}"
            )
        number(left)
        second(right)
        return text

    return parse_pair


def host_policy(text: str) -> str:
    """Check `<policy name>,<setting>=<value>`; return the text."""
    policy, comma, rest = text.partition(",")
    setting, _, value = rest.partition("=")
    if not (policy and comma and setting and value):
        raise ArgumentTypeError(
            f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}"
        )
    return text


def not_empty(text: str) -> str:
    """Return the name of a configuration, which must not be empty."""
    if not text:
        raise ArgumentTypeError("Error: empty argument for --model-config-name")
    return text


def seconds(text: str) -> float:
    """Parse the number of seconds at the start of a text, as Triton does."""
    found = _NUMBER.match(text)
    if found is None:
        raise _invalid(text, "a number of seconds")
    value = float(found[1])
    if not abs(value) < 2**31:
        raise argparse.ArgumentTypeError(f"Provided option value is out of bound. Got {text}")
    return value


def duration(text: str) -> float:
    """Parse a number of seconds that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**31:
        raise _invalid(text, "a number of seconds, 0 or more")
    return value


def within(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers from `low` to `high`."""

    def parse_number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise _invalid(text, f"{low} to {high}")
        return int(text)

    return parse_number


def leading(low: int, high: int, refusal: str, *, bits: int) -> Callable[[str], int]:
    """Return a parser of the integer at the start of a text, as in Triton's newer options.

    Args:
        low: the smallest accepted value.
        high: the largest accepted value.
        refusal: the error text for a value outside that range.
        bits: the size of Triton's integer; a larger value has an error text of its own.
    """

    def parse_leading(text: str) -> int:
        value = number(text, bits)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(refusal)
        return value

    return parse_leading


def _invalid(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"Invalid option value. Got {text}, expected {expected}")


def pattern(text: str) -> str:
    """Check a regular expression for header names."""
    try:
        HeaderForwarding(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def switched_off(text: str) -> bool:
    """Accept only false: the feature is missing."""
    if boolean(text):
        raise argparse.ArgumentTypeError("not served by the reference server, expected false")
    return False


# -- settings


def warnings(given: argparse.Namespace) -> list[str]:
    """Return warnings about settings that have no effect."""
    return [
        *_unknown_backend_settings(given.backend_config),
        *_unknown_metrics_settings(given.metrics_config),
        *_unknown_cache_settings(given.cache_config),
    ]


# ------------------------------------------------------------------------------- --backend-config
_PYTHON = "python"
#: Settings that Triton accepts for all backends. The Python backend ignores them.
_OF_ALL_BACKENDS = frozenset({MAX_BATCH_SIZE})
_ONNX = "onnxruntime"
_KNOWN = frozenset(
    [*(f"{_PYTHON},{name}" for name in PYTHON_SETTINGS), f"{_ONNX},{MAX_BATCH_SIZE}"]
)


def backend_setting(text: str) -> tuple[str, str, str]:
    """Parse `<backend name>,<setting>=<value>`: return backend, setting and value.

    The backend is "" for `<setting>=<value>`, a setting of all backends.
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
    """Return the settings of the Python backend. The last value of a setting takes precedence."""
    return {name: value for backend, name, value in settings if backend == _PYTHON}


def max_batch_sizes(settings: Sequence[tuple[str, str, str]]) -> Mapping[str, str]:
    """Return the default maximum batch size by backend; "" is for all other backends."""
    return {backend: value for backend, name, value in settings if name == MAX_BATCH_SIZE}


def _unknown_backend_settings(settings: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return warnings about `--backend-config` settings that have no effect."""
    unknown_settings: list[str] = []
    for backend, name, value in settings:
        given = f"{backend},{name}" if backend else name
        if backend not in ("", _PYTHON, _ONNX):
            alike = nearest(backend, [_PYTHON, _ONNX])
            unknown_settings.append(
                f"no effect in the reference server: --backend-config={given}={value}: unknown "
                f"backend '{backend}'; expected '{_PYTHON}' or '{_ONNX}'{alike}"
            )
        elif given not in (*_KNOWN, *_OF_ALL_BACKENDS):
            unknown_settings.append(unknown("--backend-config", given, value, _KNOWN))
    return unknown_settings


# --------------------------------------------------------------------------------- --cache-config
LOCAL_CACHE = "local"
#: The folder in which Triton searches for other caches. This server has only the local cache.
CACHE_DIRECTORY = "/opt/tritonserver/caches"
_OF_CACHE = frozenset({f"{LOCAL_CACHE},size"})

# Triton's cache has a smallest size, because the size includes its bookkeeping.
_SMALLEST_CACHE = 192
_LARGEST_CACHE = 2**63 - 1


def cache_setting(text: str) -> tuple[str, str, str]:
    """Parse `<cache name>,<setting>=<value>`: return cache, setting and value."""
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
    """Return the size of the response cache in bytes; None if there is no cache.

    The last value of a setting takes precedence.

    Raises:
        ServerError: Triton cannot create such a cache.
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
            f"reference server only has the cache '{LOCAL_CACHE}'"
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
    """Return warnings about unknown settings of the local cache."""
    return [
        unknown("--cache-config", f"{cache},{name}", value, _OF_CACHE)
        for cache, name, value in settings
        if cache == LOCAL_CACHE and f"{cache},{name}" not in _OF_CACHE
    ]


# ------------------------------------------------------------------------------- --metrics-config
_METRICS_SWITCHES = frozenset({"counter_latencies", "histogram_latencies", "summary_latencies"})
_METRICS_SETTINGS = frozenset({"summary_quantiles", *_METRICS_SWITCHES})


def metrics_setting(text: str) -> tuple[str, str]:
    """Parse `<setting>=<value>`: return setting and value."""
    name, _, value = text.partition("=")
    if not name or not value or "," in name:
        raise ArgumentTypeError(f"--metrics-config option format is <setting>=<value>. Got {text}")
    return name, value


def latency_metrics(settings: Sequence[tuple[str, str]]) -> LatencyMetrics:
    """Return the forms in which latencies are reported. Unknown names and values are ignored.

    If a switch is given several times, the value that is not its default wins.
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
    """Return warnings about `--metrics-config` settings without effect."""
    unknown_settings: list[str] = []
    for name, value in settings:
        if name not in _METRICS_SETTINGS:
            unknown_settings.append(unknown("--metrics-config", name, value, _METRICS_SETTINGS))
        elif name in _METRICS_SWITCHES and value not in ("true", "false"):
            unknown_settings.append(
                f"no effect in the reference server: --metrics-config={name}={value}: the value "
                "must be 'true' or 'false'"
            )
    return unknown_settings


# ------------------------------------------------------------------------------- unknown settings


def unknown(option: str, name: str, value: str, known: Iterable[str]) -> str:
    """Return a warning about the unknown setting `name` of `option`, with a suggestion."""
    names = {other.rpartition(",")[2]: other for other in sorted(known)}
    # Compare only the part after the comma: the part before may be missing or wrong.
    alike = nearest(name.rpartition(",")[2], names, shown=names)
    return (
        f"no effect in the reference server: {option}={name}={value}: unknown setting '{name}'"
        + (alike or f"; known are {', '.join(names.values())}")
    )


def nearest(name: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """Return `; did you mean 'X'?` with the most similar name of `known`, or ""."""
    alike = difflib.get_close_matches(name, list(known), n=1)
    if not alike:
        return ""
    suggestion = alike[0] if shown is None else shown[alike[0]]
    return f"; did you mean '{suggestion}'?"


def warn(text: str) -> None:
    """Print a warning to stderr: the log is not configured yet."""
    print(f"Warning: {text}", file=sys.stderr)
