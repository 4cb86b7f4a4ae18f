"""The interface of the replay's clients."""

from __future__ import annotations

from typing import Final, Protocol

from triton_replay.capture.reader import Exchange
from triton_replay.capture.records import Response

REDACTED_VALUE: Final = "redacted"
"""Value of redacted headers in a capture. Such headers are not sent."""


class NotAnswered(Exception):
    """No complete response arrived; `response` is the incomplete one, or None."""

    def __init__(self, reason: str, response: Response | None = None) -> None:
        super().__init__(reason)
        self.response = response


class Client(Protocol):
    """A connection to the server."""

    async def open(self) -> None:
        """Connect if the connection is not open. Raise NotAnswered if that fails."""

    async def send(self, exchange: Exchange) -> Response:
        """Send a recorded request and return the complete response, or raise NotAnswered."""
        ...
