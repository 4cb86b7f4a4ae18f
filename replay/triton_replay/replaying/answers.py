"""What the clients of a replay have in common."""

from __future__ import annotations

from typing import Final, Protocol

from triton_replay.capture.reader import Exchange
from triton_replay.capture.records import Response

REDACTED_VALUE: Final = "redacted"
"""What a recording writes instead of a header that is nobody's business; it is not sent."""


class NotAnswered(Exception):
    """No whole response came; `response` is what came of it."""

    def __init__(self, reason: str, response: Response | None = None) -> None:
        super().__init__(reason)
        self.response = response


class Client(Protocol):
    """A connection to the server."""

    async def open(self) -> None:
        """Connect, unless it is. Raises NotAnswered."""

    async def send(self, exchange: Exchange) -> Response:
        """Send a recorded request and wait for the whole answer. Raises NotAnswered."""
        ...
