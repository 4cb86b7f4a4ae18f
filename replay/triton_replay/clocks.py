"""The monotonic clock of recordings and replays."""

from __future__ import annotations

import time
from collections.abc import Callable


def clock_from_now() -> Callable[[], int]:
    """Return a monotonic clock that starts at 0 now and counts nanoseconds."""
    start = time.monotonic_ns()
    return lambda: time.monotonic_ns() - start
