"""Time as a parameter: whoever decides by time is given one of these."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic and wall-clock readings."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed moment; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""


class SystemClock:
    """The machine's clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)

    @staticmethod
    def wall_ms() -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
