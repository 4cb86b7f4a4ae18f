"""Time that moves only when a test moves it."""

from __future__ import annotations

SECOND_NS = 1_000_000_000


class ManualClock:
    """A clock that stands still; `advance` moves its monotonic reading."""

    def __init__(self, now_ns: int = 0, wall_ms: int = 0) -> None:
        self.now_ns = now_ns
        self.wall = wall_ms * 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.wall

    def advance(self, *, seconds: float = 0, ns: int = 0) -> None:
        """Let time go by."""
        self.now_ns += round(seconds * SECOND_NS) + ns
