"""The clock port: what waits or has deadlines is given a clock, which tests control."""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time, and waiting for it. Safe from any thread."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def wait(self, condition: threading.Condition, until: float) -> None:
        """Block until the condition is notified, or `now()` is `until` or later.

        The caller holds the condition's lock; as with `Condition.wait` it is let go meanwhile and
        held again on return. `until` may be `math.inf`. May return early for no reason: callers
        look again at what they waited for.
        """


class SystemClock:
    """The machine's own clock."""

    now = staticmethod(time.monotonic)

    @staticmethod
    def wait(condition: threading.Condition, until: float) -> None:
        if until == math.inf:
            condition.wait()
        else:
            # Beyond TIMEOUT_MAX Python raises OverflowError; callers look again after it anyway.
            condition.wait(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))
