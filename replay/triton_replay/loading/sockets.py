"""A TCP connection that never waits: what cannot be sent yet is kept until it can."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from triton_replay.addresses import Address
from triton_replay.errors import ReplayError, ServerUnreachable
from triton_replay.loading.slots import Connection

if TYPE_CHECKING:
    import select

_CHUNK = 1 << 18
_IN, _OUT = 1, 4
"""Of epoll, as Linux has them; other systems import this module and have none."""


class Resolved(NamedTuple):
    """An address as the system has it, so that names are looked up once."""

    address: Address
    family: int
    place: tuple[object, ...]


def resolve(address: Address, option: str) -> Resolved:
    """Connect once and leave again. Raises ServerUnreachable, which names `option`."""
    try:
        with socket.create_connection(address, timeout=10) as found:
            return Resolved(address, found.family, found.getpeername())
    except OSError as error:
        raise ServerUnreachable(
            f"{option} {address}: nobody listens there: {error.strerror or error}"
        ) from error


class Wire(Connection):
    """The socket of a connection, and its place in the loop.

    by_number: where the loop finds who reads a socket.
    """

    def __init__(
        self, server: Resolved, poll: select.epoll, by_number: dict[int, Connection]
    ) -> None:
        self._server = server
        self._poll = poll
        self._by_number = by_number
        self._socket: socket.socket | None = None
        self._connecting = False
        self._waiting = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, maybe one under way."""
        return self._socket is not None

    def open(self) -> None:
        """Begin to connect. Raises ServerUnreachable, or ReplayError if there are too many."""
        try:
            made = socket.socket(self._server.family, socket.SOCK_STREAM)
        except OSError as error:
            count = len(self._by_number)
            text = f"{count} connections are open, and there cannot be more: {error.strerror}"
            raise ReplayError(text) from error
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = made
        self._waiting.clear()
        self._by_number[made.fileno()] = self
        code = made.connect_ex(self._server.place)
        self._connecting = code == errno.EINPROGRESS
        if code and not self._connecting:
            raise self._unreachable(code)
        self._poll.register(made.fileno(), _IN | _OUT if self._connecting else _IN)

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            del self._by_number[self._socket.fileno()]
            self._socket.close()
            self._socket = None

    def write(self, data: bytes) -> None:
        """Send, as much as goes now."""
        assert self._socket is not None
        if self._waiting or self._connecting:
            self._waiting += data
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # what was received before is still to be read, and tells that it is over
            return
        if sent < len(data):
            self._waiting += memoryview(data)[sent:]
            self._poll.modify(self._socket.fileno(), _IN | _OUT)

    def read(self, mask: int) -> bytes | None:
        """What has come; empty if the server has closed, None if nothing came."""
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
        if self._waiting:
            try:
                sent = self._socket.send(self._waiting)
            except BlockingIOError:
                return
            except OSError:
                return
            del self._waiting[:sent]
        if not self._waiting:
            self._poll.modify(self._socket.fileno(), _IN)

    def _unreachable(self, code: int) -> ServerUnreachable:
        return ServerUnreachable(
            f"-u {self._server.address}: nobody listens there any more: {os.strerror(code)}"
        )
