"""When a process that ended is started again. Pure: times in, times out."""

from __future__ import annotations

_NS_PER_S = 1_000_000_000


class Backoff:
    """Twice as long after each failure, up to a limit; forgotten once a process has lasted.

    The first delay is `first_s`, the greatest `limit_s`. A process that ran for longer than
    `limit_s` was sound, so its end counts as the first.
    """

    def __init__(self, first_s: float = 0.1, limit_s: float = 10.0) -> None:
        self._first_ns = int(first_s * _NS_PER_S)
        self._limit_ns = int(limit_s * _NS_PER_S)
        self._delay_ns = self._first_ns
        self._started_ns: int | None = None

    def started(self, now_ns: int) -> None:
        """A process is ready."""
        self._started_ns = now_ns

    def ended(self, now_ns: int) -> int:
        """It has ended, or could not be made ready: how many nanoseconds from now to try again."""
        if self._started_ns is not None and now_ns - self._started_ns > self._limit_ns:
            self._delay_ns = self._first_ns
        self._started_ns = None
        delay = self._delay_ns
        self._delay_ns = min(2 * delay, self._limit_ns)
        return delay
