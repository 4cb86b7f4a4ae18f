"""A port that speaks HTTP: accepts connections, and drains them when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from reference_server.core.intake import Intake
from reference_server.frontends.connections import (
    BACKLOG,
    SCRATCH_BYTES,
    OpenConnections,
    Report,
    Sweep,
    cannot_listen,
    report_nothing,
)
from reference_server.frontends.http.connection import HttpConnection
from reference_server.frontends.http.reading import KnownHeads
from reference_server.frontends.http.request import Request
from reference_server.options import TimeLimits

log = logging.getLogger(__name__)


class HttpListener:
    """Gives the requests of one port to `handle`, on the loop's thread.

    `open`, then `stop_accepting` and `drained`, then `close`. `service` is its name in the log;
    of JSON more than `max_input` bytes are not kept. `report` is told of connections that end
    badly; `intake` has what long bodies hold. Beyond `most_connections` (0: any number) those that
    come are closed.
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
    ) -> None:
        self._intake = intake
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
        """Listen. Raises ServerError UNAVAILABLE if the port is taken."""
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
            raise cannot_listen(f"{self._address}:{self._port}", error) from error
        self._sweep = Sweep(self._connections, HttpConnection.look, self._limits, loop)
        self._sweep.start()
        log.info("Started %s at %s:%d", self._service, self._address, self._port)

    def protocol_factory(self, loop: asyncio.AbstractEventLoop) -> Callable[[], HttpConnection]:
        """Return a function that makes the protocol object of one accepted connection on `loop`."""
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
        """Refuse new connections, close idle ones; the others close after their answers."""
        self._connections.stop_accepting()

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def drained(self) -> None:
        """Return when no connection is left."""
        await self._connections.gone()

    def close(self) -> None:
        """Give up the port."""
        if self._sweep is not None:
            self._sweep.stop()
        if self._server is not None:
            self._server.close()
