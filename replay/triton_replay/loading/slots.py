"""Room for a request in flight, and what the load needs of a connection that has some."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Protocol

from triton_replay.loading.sequences import Running

CLOSED: Final = "the server closed the connection"
"""Why a request failed whose connection ended before its answer."""


class Slot:
    """One request at a time: where it is sent, and its times in nanoseconds of the loop's clock."""

    __slots__ = (
        *("asked", "came", "connection", "due", "failure", "first", "reply", "sent"),
        *("sequence", "stream", "taken", "times"),
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.due = 0
        self.sent = 0
        """When the connection had taken it."""
        self.first = 0
        """When its first response came; 0 where only the whole answer is told."""
        self.failure = ""
        """Why there was no good answer."""
        self.times: array[int] | None = None
        """When each response came, where a request has many."""
        self.asked = False
        """Whether an answer is to come."""
        self.stream = 0
        """Of HTTP/2; 0 where no call is under way."""
        self.taken = 0
        """Bytes that came on the stream since its window was opened again."""
        self.came = bytearray()
        """The answer, where somebody reads it."""
        self.reply: Callable[[Slot], None] | None = None
        """Who reads it; the request is none of the load then."""
        self.sequence: Running | None = None


class Connection(Protocol):
    """A connection to the server; it is opened when it is first needed, and again when it was lost.

    What is asked is sent with `flush` at the latest.
    """

    slots: list[Slot]

    def ask(self, slot: Slot, request: bytes) -> None:
        """Send a request, whose answer is the slot's."""

    def handle(self, mask: int, done: list[Slot]) -> None:
        """Take what has happened; adds the slots whose requests are over to `done`.

        Raises ServerUnreachable if nobody listens any more.
        """

    def flush(self) -> None:
        """Send what has been asked since."""

    def close(self) -> None:
        """End the connection."""
