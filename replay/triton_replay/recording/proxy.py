"""The proxy: one connection to the server for each client connection.

Bytes are forwarded before the tap receives them, so that a request does not wait for a parser, a
queue or a disk. Reading from one side pauses while the other side cannot accept more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from triton_replay.addresses import Address
from triton_replay.errors import ReplayError


class Proxy:
    """Forwards connections to a server.

    Args:
        server: The server's address.
        count: Called with the reason for traffic that cannot be recorded.
        new_tap: Creates the tap of a connection.
    """

    def __init__(
        self, server: Address, count: Callable[[str], None], new_tap: Callable[[], Tap]
    ) -> None:
        self.server = server
        self.count = count
        self.clients: set[_Client] = set()
        self._new_tap = new_tap
        self._listener: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Start to accept connections.

        Args:
            address: Address to listen at; port 0 selects a free port.

        Returns:
            The address with its actual port.

        Raises:
            ReplayError: The address cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._connected, address.host, address.port)
        except OSError as error:
            raise ReplayError(f"--listen {address}: {error.strerror or error}") from error
        port = self._listener.sockets[0].getsockname()[1]
        return Address(address.host, port)

    async def close(self) -> None:
        """Stop accepting connections and close the open ones."""
        if self._listener is not None:
            self._listener.close()
        for client in list(self.clients):
            client.end()
        while self.clients:
            await asyncio.sleep(0)

    def _connected(self) -> asyncio.Protocol:
        return _Client(self, self._new_tap())


class _Side(asyncio.Protocol):
    """One side of a proxied connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """Pause reading from the other side."""
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def eof_received(self) -> bool:
        """Half-close the other side, which may still send."""
        if self.peer is not None and self.peer.transport is not None:
            with contextlib.suppress(OSError):  # the other side is already closed
                self.peer.transport.write_eof()
        return True

    def close_peer(self) -> None:
        """Close the other side after the forwarded bytes are sent."""
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()


class _Client(_Side):
    """The side of the client. It opens the connection to the server."""

    def __init__(self, proxy: Proxy, tap: Tap) -> None:
        super().__init__()
        self._proxy = proxy
        self.tap = tap
        self._connecting: asyncio.Task[None] | None = None
        self._early = b""
        """Bytes received before the connection to the server was open."""
        self._early_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.clients.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Server(self), *self._proxy.server)
        except OSError:
            self._proxy.count("connections that the server did not accept")
            self.end()
            return
        if self._early:
            self._forward(self._early)
            self._early = b""
            if self.transport is not None:
                self.transport.resume_reading()
        if self._early_end:
            super().eof_received()

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            # Pausing in connection_made has no effect: uvloop starts to read after it.
            assert self.transport is not None
            self.transport.pause_reading()
            self._early += data
        else:
            self._forward(data)
        self.tap.sent(data)

    def eof_received(self) -> bool:
        self._early_end = self.peer is None
        return super().eof_received()

    def _forward(self, data: bytes) -> None:
        # If there is no transport, the server has closed, and this side is being closed.
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.tap.closed("client")
        self.transport = None
        self._proxy.clients.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        self.close_peer()

    def end(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()


class _Server(_Side):
    """The side of the server."""

    def __init__(self, client: _Client) -> None:
        super().__init__()
        self._client = client
        self.peer = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.peer = self
        if self._client.transport is None:  # the client has disconnected
            transport.close()

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client.transport is not None:
            client.transport.write(data)
        client.tap.answered(data)

    def eof_received(self) -> bool:
        """Close the connection: a server that half-closes will not respond any more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.tap.closed("server")
        self.transport = None
        self.close_peer()


# -- parsing on a separate thread: the event loop only queues the bytes with their time, so that no
# request waits for a parser

INTERVAL: Final = 0.02
"""Seconds between two checks of the queue."""
MAX_NOTED: Final = 10_000
"""Largest number of queued pieces. Beyond it the event loop parses them, which slows traffic."""


class Tap(Protocol):
    """Reads both directions of one connection."""

    def sent(self, data: bytes) -> None:
        """Read bytes from the client."""

    def answered(self, data: bytes) -> None:
        """Read bytes from the server."""

    def closed(self, by: str) -> None:
        """Handle that "client" or "server" closed the connection."""


class Reading:
    """Calls taps later, in the original order.

    Args:
        clock: Returns nanoseconds since the start of the recording.
        count: Called with the reason if a tap raises, which means a defect.
    """

    def __init__(self, clock: Callable[[], int], count: Callable[[str], None]) -> None:
        self._clock = clock
        self._count = count
        self._now = 0
        self._noted: deque[tuple[Callable[[Any], None], Any, int]] = deque()
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def clock(self) -> int:
        """Return the arrival time of the piece that a tap is reading."""
        return self._now

    def beside(self, tap: Tap) -> Tap:
        """Return a tap that queues its calls for `tap`."""
        return _Noting(self, tap)

    def note(self, read: Callable[[Any], None], what: object) -> None:
        """Queue the call `read(what)`. For the event loop's thread."""
        self._noted.append((read, what, self._clock()))
        if len(self._noted) > MAX_NOTED:
            self.read_noted()

    def read_noted(self) -> None:
        """Execute all queued calls."""
        with self._reading:
            for _ in range(len(self._noted)):
                read, what, self._now = self._noted.popleft()
                try:
                    read(what)
                except Exception as error:  # the thread must go on
                    self._count(f"pieces that could not be read: {error!r}")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Execute all queued calls and end the thread."""
        self._stop.set()
        self._thread.join()
        self.read_noted()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.read_noted()


class _Noting:
    """A tap that queues its calls."""

    def __init__(self, reading: Reading, tap: Tap) -> None:
        self._note = reading.note
        self._sent, self._answered, self._closed = tap.sent, tap.answered, tap.closed

    def sent(self, data: bytes) -> None:
        self._note(self._sent, data)

    def answered(self, data: bytes) -> None:
        self._note(self._answered, data)

    def closed(self, by: str) -> None:
        self._note(self._closed, by)
