"""The clock of recordings and replays."""

from __future__ import annotations

import time
from collections.abc import Callable


def clock_from_now() -> Callable[[], int]:
    """A clock that counts nanoseconds from now on and never jumps."""
    start = time.monotonic_ns()
    return lambda: time.monotonic_ns() - start
