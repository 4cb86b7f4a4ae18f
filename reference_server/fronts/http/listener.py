"""The HTTP port: accepts connections, and drains them when the server stops."""

from __future__ import annotations

import asyncio
import errno
import logging

from reference_server.core.clock import Clock
from reference_server.core.errors import unavailable
from reference_server.fronts.http.connection import HttpConnection
from reference_server.fronts.http.handlers import HttpHandlers
from reference_server.gateway.gateway import Gateway
from reference_server.options import HttpOptions

log = logging.getLogger(__name__)

_SCRATCH_BYTES = 1 << 18
_BACKLOG = 1024


class HttpListener:
    """Serves the gateway over HTTP. `open`, then `stop_accepting` and `drained`, then `close`."""

    def __init__(self, options: HttpOptions, gateway: Gateway, clock: Clock) -> None:
        self._options = options
        self._gateway = gateway
        self._clock = clock
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._accepting = True

    async def open(self) -> None:
        """Listen. Raises ServerError UNAVAILABLE if the port is taken."""
        loop = asyncio.get_running_loop()
        handlers = HttpHandlers(self._gateway, loop, self._clock)
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        options = self._options
        self._empty.set()
        try:
            self._server = await loop.create_server(
                lambda: HttpConnection(handlers.handle, scratch, self._opened, self._closed),
                options.address,
                options.port,
                backlog=_BACKLOG,
                reuse_port=options.reuse_port or None,
            )
        except OSError as error:
            raise unavailable(
                f"Socket '{options.address}:{options.port}' already in use "
                if error.errno == errno.EADDRINUSE
                else f"cannot listen on '{options.address}:{options.port}': {error}"
            ) from error
        log.info("Started HTTPService at %s:%d", options.address, options.port)

    def stop_accepting(self) -> None:
        """Refuse new connections, close idle ones; the others close after their answers."""
        self._accepting = False
        for connection in tuple(self._connections):
            connection.close()

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
