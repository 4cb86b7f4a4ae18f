"""When a service has been without clients for long enough. Pure: facts and `now` in."""

from __future__ import annotations

import math


class Grace:
    """Counts from the start, and from each moment at which the last client has left."""

    def __init__(self, grace_s: float, now: float) -> None:
        self._grace_s = grace_s
        self._alone_since: float | None = now

    def note(self, clients: int, now: float) -> None:
        """So many clients are there now."""
        if clients:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now

    @property
    def ends_at(self) -> float:
        """When the service is no longer needed; infinite while it has clients."""
        return math.inf if self._alone_since is None else self._alone_since + self._grace_s
