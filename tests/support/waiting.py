"""Wait for a condition that no event announces, by polling it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60
"""Limit of every wait; far more than a condition needs on a busy machine."""
_PAUSE_SECONDS = 0.002


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
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := read()) != wanted and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return found
