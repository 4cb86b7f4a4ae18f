"""The interface between a load and its connections: slots for requests in flight."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Protocol

CLOSED: Final = "the server closed the connection"
"""Failure of a request whose connection ended before its response."""


class SequenceState(Protocol):
    """The sequence that a slot is executing."""

    id: int

    @property
    def is_open(self) -> bool:
        """True while its last request is still to be sent."""

    def step(self) -> tuple[int, int, bool, bool]:
        """Advance; return the index of the data, the id, and the flags `start` and `end`."""
        ...

    def give_up(self) -> None:
        """Skip the remaining requests."""

    def shorten(self) -> None:
        """Make the next request the last one."""


class Slot:
    """One request in flight. Times are nanoseconds of the loop's clock."""

    __slots__ = (
        "body",
        "connection",
        "due",
        "failure",
        "first",
        "pending",
        "received",
        "reply",
        "sent",
        "sequence",
        "stream",
        "times",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.due = 0
        self.sent = 0
        """Time at which the connection accepted the request."""
        self.first = 0
        """Time of the first response; 0 if only the whole response is timed."""
        self.failure = ""
        """Reason why the request failed, or ""."""
        self.times: array[int] | None = None
        """Time of each response, if a request may have several."""
        self.pending = False
        """True while a response is outstanding."""
        self.stream = 0
        """Stream of HTTP/2; 0 without a call."""
        self.received = 0
        """Bytes received on the stream since the last WINDOW_UPDATE."""
        self.body = bytearray()
        """The body of the response, if `reply` is set."""
        self.reply: Callable[[Slot], None] | None = None
        """Receives the slot with the response, instead of the load's record."""
        self.sequence: SequenceState | None = None


class Connection(Protocol):
    """A connection that opens when it is first needed, and again after it was closed."""

    slots: list[Slot]

    def send(self, slot: Slot, request: bytes) -> None:
        """Send a request for this slot, at the latest with the next `flush`."""

    def handle(self, mask: int, done: list[Slot]) -> None:
        """Handle events of the socket; append slots whose requests are over to `done`.

        Raises:
            ServerUnreachable: The server no longer accepts connections.
        """

    def flush(self) -> None:
        """Send the requests accepted since the last call."""

    def close(self) -> None:
        """Close the connection."""
