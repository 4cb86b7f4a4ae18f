"""Wait for a condition that no event announces, by polling it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60
"""Limit of every wait; far more than a condition needs on a busy machine."""
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.02
_SHARE = 10
"""A pause is one in this number of the elapsed time, so that long waits do not occupy a core."""


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until a condition is true.

    Args:
        condition: The condition.
        what: The event, for the message of the failure; by default the condition's source line.

    Raises AssertionError after `PATIENCE_SECONDS`.
    """
    if not eventually(lambda: bool(condition()), True):
        raise AssertionError(f"waited {PATIENCE_SECONDS} s for: {what or _source(condition)}")


def _source(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):  # a built-in function, or no file
        return repr(condition)


def eventually(read: Callable[[], T], wanted: T) -> T:
    """Call `read` until it returns `wanted`, up to `PATIENCE_SECONDS`; return the last value."""
    start = time.monotonic()
    while (found := read()) != wanted and (passed := time.monotonic() - start) < PATIENCE_SECONDS:
        time.sleep(min(max(_LEAST_PAUSE_S, passed / _SHARE), _LONGEST_PAUSE_S))
    return found
