"""Who waits for an answer, until when, and whether they have gone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ge_runtime.errors import Abandoned, Cancelled, Expired


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of the one who sent a request."""

    request_id: str = ""
    """Theirs, for error texts; empty if they gave none."""
    deadline: float = math.inf
    """Seconds on the runtime's clock; an answer after it is of no use."""
    is_cancelled: Callable[[], bool] = _never
    """Asks the server, which takes time: about 10 us in tritonserver."""

    def abandonment(self, now: float, *, ask: bool) -> Abandoned | None:
        """Why this caller no longer waits, or None. ask: whether to ask the server, too."""
        if now > self.deadline:
            late = (now - self.deadline) * 1e3
            return Expired(f"found the deadline passed by {late:.1f} ms, expected time to execute")
        if ask and self.is_cancelled():
            return Cancelled("the request was cancelled")
        return None


ANONYMOUS_CALLER = Caller()
"""A caller without a name, who waits for ever."""
