"""Settings on the command line that mean nothing, and what may have been meant.

Triton takes them without a word, and so they are no errors here either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reference_server import backend_config, cache_config, metrics_config, trace_config
from reference_server.backends.hosts import PYTHON_SETTINGS
from reference_server.command_parser import nearest

_OF_PYTHON = frozenset(f"{backend_config.PYTHON},{name}" for name in PYTHON_SETTINGS)
_OF_CACHE = frozenset({f"{cache_config.LOCAL},size"})


def of_backends(settings: Sequence[tuple[str, str, str]]) -> list[str]:
    """What `--backend-config` says in vain: (backend, setting, value), of all if it has no name."""
    told: list[str] = []
    for backend, name, value in settings:
        given = f"{backend},{name}" if backend else name
        if backend not in ("", backend_config.PYTHON):
            alike = nearest(backend, [backend_config.PYTHON])
            told.append(
                f"no effect in the reference server: --backend-config={given}={value}: there is no "
                f"backend '{backend}' with settings here, only '{backend_config.PYTHON}'{alike}"
            )
        elif given not in (*_OF_PYTHON, *backend_config.OF_ALL):
            told.append(_unknown("--backend-config", given, value, _OF_PYTHON))
    return told


def of_metrics(settings: Sequence[tuple[str, str]]) -> list[str]:
    """What `--metrics-config` says in vain."""
    told: list[str] = []
    for name, value in settings:
        if name not in metrics_config.NAMES:
            told.append(_unknown("--metrics-config", name, value, metrics_config.NAMES))
        elif name in metrics_config.SWITCHES and value not in ("true", "false"):
            told.append(
                f"no effect in the reference server: --metrics-config={name}={value}: the value "
                "must be 'true' or 'false'"
            )
    return told


def of_tracing(settings: Sequence[tuple[str, str]]) -> list[str]:
    """What `--trace-config` says in vain."""
    return [
        _unknown("--trace-config", name, value, trace_config.NAMES)
        for name, value in settings
        if name not in trace_config.NAMES
    ]


def of_cache(settings: Sequence[tuple[str, str, str]]) -> list[str]:
    """What `--cache-config` says in vain of a cache that is there."""
    return [
        _unknown("--cache-config", f"{cache},{name}", value, _OF_CACHE)
        for cache, name, value in settings
        if cache == cache_config.LOCAL and f"{cache},{name}" not in _OF_CACHE
    ]


def _unknown(option: str, name: str, value: str, known: Iterable[str]) -> str:
    names = {other.rpartition(",")[2]: other for other in sorted(known)}
    # What is alike is the setting itself: it may stand at the wrong place, too.
    alike = nearest(name.rpartition(",")[2], names, shown=names)
    return (
        f"no effect in the reference server: {option}={name}={value}: unknown setting '{name}'"
        + (alike or f"; known are {', '.join(names.values())}")
    )
