"""What a client may do without asking for anything, and how often.

Frames that cost the server more than the client, and move nothing, are paid for out of allowances
that grow with time. A good client never comes near their end.
"""

from __future__ import annotations

from reference_server.frontends.grpc.http2.errors import ConnectionFault, ErrorCode


class Allowance:
    """At most `burst` at once, and `per_s` for each second."""

    def __init__(self, what: str, burst: float, per_s: float) -> None:
        self._what = what
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._since_s: float | None = None

    def spend(self, now_s: float, cost: float = 1) -> None:
        """Take `cost` out. Raises ConnectionFault if that is too much."""
        if self._since_s is not None:
            grown = (now_s - self._since_s) * self._per_s
            self._left = min(self._burst, self._left + grown)
        self._since_s = now_s
        self._left -= cost
        if self._left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._what}")


#: A stream that is given up sooner was never meant; deadlines are mostly longer.
YOUNG_S = 0.05


class Guard:
    """The allowances of one connection."""

    def __init__(self) -> None:
        #: Streams that are given up as soon as they are opened: each makes work that nobody waits
        #: for, and those that are open at once are no limit to them.
        self.resets = Allowance("streams that are reset", burst=2_000, per_s=1_000)
        #: Pings, settings, empty DATA, priorities, unknown frames, and frames of streams that were.
        self.idle_frames = Allowance("frames without use", burst=10_000, per_s=1_000)
