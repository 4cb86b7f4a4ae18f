"""The clock interface for code that waits or has deadlines; tests replace the clock."""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time, and waits with a deadline. Safe from any thread."""

    def now(self) -> float:
        """Return seconds since a fixed moment; never decreases."""

    def wait(self, condition: threading.Condition, until: float) -> None:
        """Block until the condition is notified or `now()` reaches `until`.

        May return early without a reason, so callers must check what they waited for.

        Args:
            condition: A condition whose lock the caller holds. As in `Condition.wait`, the lock is
                released during the wait and held again on return.
            until: Seconds as in `now()`; `math.inf` waits without a deadline.
        """


class SystemClock:
    """The machine's own clock."""

    now = staticmethod(time.monotonic)

    @staticmethod
    def wait(condition: threading.Condition, until: float) -> None:
        if until == math.inf:
            condition.wait()
        else:
            # Above TIMEOUT_MAX Python raises OverflowError; callers check after a wait anyway.
            condition.wait(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))
