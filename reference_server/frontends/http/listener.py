"""An HTTP port: accepts connections, and drains them when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from reference_server.core.backlog import Intake
from reference_server.frontends.connections import (
    BACKLOG,
    SCRATCH_BYTES,
    OpenConnections,
    Report,
    Sweep,
    listen_error,
    report_nothing,
)
from reference_server.frontends.http.connection import HttpConnection
from reference_server.frontends.http.reading import KnownHeads
from reference_server.frontends.http.request import Request
from reference_server.options import TimeLimits

log = logging.getLogger(__name__)


class HttpListener:
    """Passes the requests of one port to `handle`, on the loop's thread.

    Call `open`, then `stop_accepting` and `drained`, then `close`.

    Args:
        service: the name in the log.
        address: the address to listen on.
        port: the port to listen on.
        handle: answers a request.
        reuse_port: set SO_REUSEPORT.
        max_input: the limit in bytes for bodies of JSON or raw tensors; None is no limit.
        limits: time limits for clients.
        report: called when a connection ends abnormally.
        most_connections: the limit of open connections; 0 is no limit.
        intake: the memory budget for long bodies.
        closes_open: `stop_accepting` closes open connections when they are idle.
    """

    def __init__(
        self,
        service: str,
        address: str,
        port: int,
        handle: Callable[[Request], None],
        *,
        reuse_port: bool = False,
        max_input: int | None = None,
        limits: TimeLimits | None = None,
        report: Report = report_nothing,
        most_connections: int = 0,
        intake: Intake | None = None,
        closes_open: bool = True,
    ) -> None:
        self._intake = intake
        self._closes_open = closes_open
        self._report = report
        self._limits = limits or TimeLimits()
        self._max_input = max_input
        self._service = service
        self._address = address
        self._port = port
        self._handle = handle
        self._reuse_port = reuse_port
        self._connections: OpenConnections[HttpConnection] = OpenConnections(
            HttpConnection.close, most_connections, report
        )
        self._server: asyncio.Server | None = None
        self._sweep: Sweep[HttpConnection] | None = None

    async def open(self) -> None:
        """Listen. Raises ServerError UNAVAILABLE if the port is in use."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self.protocol_factory(loop),
                self._address,
                self._port,
                backlog=BACKLOG,
                reuse_port=self._reuse_port or None,
            )
        except OSError as error:
            raise listen_error(f"{self._address}:{self._port}", error) from error
        self._sweep = Sweep(self._connections, HttpConnection.check_timeouts, self._limits, loop)
        self._sweep.start()
        log.info("Started %s at %s:%d", self._service, self._address, self._port)

    def protocol_factory(self, loop: asyncio.AbstractEventLoop) -> Callable[[], HttpConnection]:
        """Return a factory of protocol objects, one for each accepted connection on `loop`."""
        ours = self._connections
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        heads = KnownHeads()
        return lambda: HttpConnection(
            self._handle,
            loop.call_soon,
            scratch,
            ours.opened,
            ours.closed,
            self._max_input,
            limits=self._limits,
            heads=heads,
            report=self._report,
            intake=self._intake,
        )

    def stop_accepting(self) -> None:
        """Reject new connections.

        With `closes_open`, close idle connections at once and busy ones after their replies.
        Otherwise, continue to serve open connections.
        """
        self._connections.stop_accepting(closes_open=self._closes_open)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def drained(self) -> None:
        """Return when no connection is left."""
        await self._connections.drained()

    def close(self) -> None:
        """Close the port."""
        if self._sweep is not None:
            self._sweep.stop()
        if self._server is not None:
            self._server.close()
