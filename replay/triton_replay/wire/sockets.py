"""Connections of a load: slots for requests in flight, and TCP sockets watched by epoll."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from triton_replay.addresses import Address, connected
from triton_replay.errors import ReplayError, ServerUnreachable

if TYPE_CHECKING:
    import select

_CHUNK = 1 << 18
_MOST_PIECES = 1_000
"""Largest number of pieces of one `sendmsg`; Linux allows 1,024."""
_IN, _OUT = 1, 4
"""Events of Linux's epoll. Other systems can import this module although they have no epoll."""

CLOSED: Final = "the server closed the connection"
"""Reason of failure if the connection ended before the response."""


class SequenceState(Protocol):
    """The sequence that a slot is executing."""

    id: int

    @property
    def is_open(self) -> bool:
        """True while the last request of the sequence is still to be sent."""

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
        """Send a request for this slot, no later than the next `flush`."""

    def handle(self, mask: int, done: list[Slot]) -> None:
        """Handle events of the socket; append slots whose requests are over to `done`.

        Raises:
            ServerUnreachable: The server no longer accepts connections.
        """

    def flush(self) -> None:
        """Send the requests accepted since the last call."""

    def close(self) -> None:
        """Close the connection."""


class Resolved(NamedTuple):
    """A server's address with the result of its name lookup."""

    address: Address
    family: int
    place: tuple[object, ...]


def resolve(address: Address, option: str) -> Resolved:
    """Look up an address and check that a server accepts connections there.

    Args:
        address: Host and port.
        option: The option that named the address, for the error text.

    Raises:
        ServerUnreachable: No connection is possible.
    """
    with connected(address, option) as found:
        return Resolved(address, found.family, found.getpeername())


class Wire(Connection):
    """The socket of a connection.

    Args:
        server: Address to connect to.
        poll: The loop's epoll object.
        by_number: The loop's connections by file descriptor.
    """

    def __init__(
        self, server: Resolved, poll: select.epoll, by_number: dict[int, Connection]
    ) -> None:
        self._server = server
        self._poll = poll
        self._by_number = by_number
        self._socket: socket.socket | None = None
        self._connecting = False
        self._unsent: deque[bytes | memoryview] = deque()

    @property
    def is_open(self) -> bool:
        """True while the socket is connected or connecting."""
        return self._socket is not None

    def open(self) -> None:
        """Start to connect.

        Raises:
            ServerUnreachable: The server does not accept connections.
            ReplayError: The process cannot open more sockets.
        """
        try:
            made = socket.socket(self._server.family, socket.SOCK_STREAM)
        except OSError as error:
            count = len(self._by_number)
            text = f"connection {count + 1}: cannot be opened: {error.strerror}; see `ulimit -n`"
            raise ReplayError(text) from error
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = made
        self._unsent.clear()
        self._by_number[made.fileno()] = self
        code = made.connect_ex(self._server.place)
        self._connecting = code == errno.EINPROGRESS
        if code and not self._connecting:
            raise self._unreachable(code)
        self._poll.register(made.fileno(), _IN | _OUT if self._connecting else _IN)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            del self._by_number[self._socket.fileno()]
            self._socket.close()
            self._socket = None

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send pieces as far as possible now, and the rest when the socket accepts it."""
        assert self._socket is not None
        waits = bool(self._unsent) or self._connecting
        self._unsent.extend(pieces)
        if not waits and not self._send():
            self._poll.modify(self._socket.fileno(), _IN | _OUT)

    def read(self, mask: int) -> bytes | None:
        """Return received bytes: b"" if the server closed, None if nothing was received."""
        if self._socket is None:
            return None
        if mask & _OUT:
            self._writable()
        if not mask & ~_OUT:
            return None
        try:
            return self._socket.recv(_CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _writable(self) -> None:
        assert self._socket is not None
        if self._connecting:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise self._unreachable(code)
            self._connecting = False
        if self._send():
            self._poll.modify(self._socket.fileno(), _IN)

    def _send(self) -> bool:
        """Send unsent pieces; return whether all are sent."""
        assert self._socket is not None
        unsent = self._unsent
        while unsent:
            pieces = list(itertools.islice(unsent, _MOST_PIECES))
            try:
                one = len(pieces) == 1
                sent = self._socket.send(pieces[0]) if one else self._socket.sendmsg(pieces)
            except BlockingIOError:
                return False
            except OSError:
                # The connection is broken, but bytes that were received before can still be read.
                unsent.clear()
                return True
            for piece in pieces:
                if sent < len(piece):
                    unsent[0] = memoryview(piece)[sent:]
                    break
                sent -= len(piece)
                unsent.popleft()
        return True

    def _unreachable(self, code: int) -> ServerUnreachable:
        return ServerUnreachable(
            f"-u {self._server.address}: the server stopped listening: {os.strerror(code)}"
        )
