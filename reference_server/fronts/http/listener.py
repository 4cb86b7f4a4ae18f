"""A port that speaks HTTP: accepts connections, and drains them when the server stops."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from reference_server.core.errors import unavailable
from reference_server.fronts.http.connection import HttpConnection, Request

log = logging.getLogger(__name__)

_SCRATCH_BYTES = 1 << 18
_BACKLOG = 1024


class HttpListener:
    """Gives the requests of one port to `handle`, on the loop's thread.

    `open`, then `stop_accepting` and `drained`, then `close`. `service` is its name in the log;
    bodies of more than `max_body` bytes are refused.
    """

    def __init__(
        self,
        service: str,
        address: str,
        port: int,
        handle: Callable[[Request], None],
        *,
        reuse_port: bool = False,
        max_body: int | None = None,
    ) -> None:
        self._max_body = max_body
        self._service = service
        self._address = address
        self._port = port
        self._handle = handle
        self._reuse_port = reuse_port
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._accepting = True

    async def open(self) -> None:
        """Listen. Raises ServerError UNAVAILABLE if the port is taken."""
        loop = asyncio.get_running_loop()
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        try:
            self._server = await loop.create_server(
                lambda: HttpConnection(
                    self._handle, scratch, self._opened, self._closed, self._max_body
                ),
                self._address,
                self._port,
                backlog=_BACKLOG,
                reuse_port=self._reuse_port or None,
            )
        except OSError as error:
            raise unavailable(
                f"Socket '{self._address}:{self._port}' already in use "
                if error.errno == errno.EADDRINUSE
                else f"cannot listen on '{self._address}:{self._port}': {error}"
            ) from error
        log.info("Started %s at %s:%d", self._service, self._address, self._port)

    def stop_accepting(self) -> None:
        """Refuse new connections, close idle ones; the others close after their answers."""
        self._accepting = False
        for connection in tuple(self._connections):
            connection.close()

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def drained(self) -> None:
        """Return when no connection is left."""
        await self._empty.wait()

    def close(self) -> None:
        """Give up the port."""
        if self._server is not None:
            self._server.close()

    def _opened(self, connection: HttpConnection) -> None:
        self._connections.add(connection)
        self._empty.clear()
        if not self._accepting:
            connection.close()

    def _closed(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
