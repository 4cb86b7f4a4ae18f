"""Wait for what nobody announces: what another process does by itself, by looking again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60
"""Far more than anything takes; a test that needs it all fails."""
_PAUSE_SECONDS = 0.002


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until it is true; fails if it never is, and tells then what has not come about."""
    assert eventually(lambda: bool(condition()), True), f"{what} has not come about"


def eventually(read: Callable[[], T], wanted: T) -> T:
    """Read until the answer is the one wanted, or until there was time enough for it; the last."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := read()) != wanted and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return found
