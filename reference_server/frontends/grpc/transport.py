"""gRPC's port: accepts connections, gives each a session, and drains them when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from reference_server.core.errors import invalid_arg
from reference_server.core.intake import Intake
from reference_server.frontends.connections import (
    BACKLOG,
    SCRATCH_BYTES,
    Incoming,
    OpenConnections,
    Report,
    Sweep,
    cannot_listen,
    report_nothing,
)
from reference_server.frontends.event_loop import CODECS, Background
from reference_server.frontends.grpc.calls import Method, Run
from reference_server.frontends.grpc.http2.streams import Part
from reference_server.frontends.grpc.session import Session
from reference_server.options import GrpcOptions, TimeLimits, TlsOptions

log = logging.getLogger(__name__)

#: Bytes that are handled without a look at the clock; a call may have as few as thirty.
_PORTION_BYTES = 1 << 9
#: Bytes that are read at a time behind a message that was read where it belongs: the next one will
#: be as long, and what is read of it before its place is known is copied there.
_BEGINNING_BYTES = 1 << 14
#: How long the last bytes to a client may take.
_LINGER_S = 20.0
#: What stands for no limit of a TLS handshake; asyncio's default would be a minute.
_FOR_EVER_S = 1e6
#: Connections of one age do not all end at once: as in gRPC, a tenth more or less.
_AGE_JITTER = 0.1


class GrpcListener:
    """Serves the methods in `table` on one port, on the loop's thread.

    `open`, then `stop_accepting` and `drained`, then `close`. `report` is told of connections and
    calls that end badly; `intake` has what long messages hold. Beyond `most_connections` (0: any
    number) those that come are sent away.
    """

    def __init__(
        self,
        options: GrpcOptions,
        table: Mapping[str, Method],
        limits: TimeLimits | None = None,
        report: Report = report_nothing,
        most_connections: int = 0,
        intake: Intake | None = None,
    ) -> None:
        self._report = report
        self._intake = intake
        self._options = options
        self._table = table
        self._limits = limits or TimeLimits()
        self._sweep: Sweep[_Connection] | None = None
        self._connections: OpenConnections[_Connection] = OpenConnections(
            _Connection.stop, most_connections, report
        )
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. Raises ServerError if the port is taken, or what TLS needs cannot be read."""
        options = self._options
        address = f"{options.address}:{options.port}"
        loop = asyncio.get_running_loop()
        context = None if options.tls is None else server_context(options.tls)
        # Without TLS there is no handshake, and asyncio refuses a limit for it.
        handshake_s = None if context is None else self._limits.head_s or _FOR_EVER_S
        try:
            self._server = await loop.create_server(
                self.protocol_factory(loop),
                options.address,
                options.port,
                backlog=BACKLOG,
                reuse_port=options.reuse_port or None,
                ssl=context,
                ssl_handshake_timeout=handshake_s,
            )
        except OSError as error:
            raise cannot_listen(address, error) from error
        self._sweep = Sweep(self._connections, _Connection.look, self._limits, loop)
        self._sweep.start()
        log.info("Started GRPCInferenceService at %s", address)

    def protocol_factory(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], asyncio.BufferedProtocol]:
        """Return a function that makes the protocol object of one accepted connection on `loop`."""
        ours = self._connections
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        run = Background(loop, CODECS).run
        return lambda: _Connection(
            *(self._table, self._options, self._limits, loop, run, scratch),
            *(ours.opened, ours.closed, self._report, self._intake),
        )

    def stop_accepting(self) -> None:
        """Refuse new connections and calls; those in flight go on, streams with what they asked."""
        if self._server is not None:
            self._server.close()
        self._connections.stop_accepting()

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def drained(self) -> None:
        """Return when no connection is left."""
        await self._connections.gone()

    def close(self) -> None:
        """Cancel what is still in flight."""
        if self._sweep is not None:
            self._sweep.stop()
        for connection in self._connections:
            connection.abort()


class _Connection(asyncio.BufferedProtocol):
    """One client's connection: its socket and its timers around its session.

    `scratch` is a buffer that all connections of a loop share, since what is in it is consumed
    before the next read; `opened` and `closed` report the connection's life.
    """

    def __init__(
        self,
        table: Mapping[str, Method],
        options: GrpcOptions,
        limits: TimeLimits,
        loop: asyncio.AbstractEventLoop,
        run: Run,
        scratch: memoryview,
        opened: Callable[[_Connection], None],
        closed: Callable[[_Connection], None],
        report: Report,
        intake: Intake | None,
    ) -> None:
        self._options = options
        self._loop = loop
        self._scratch = scratch
        self._opened = opened
        self._closed = closed
        self._session = Session(
            *(table, options, loop, run, self._write, self._close),
            *(limits, report, intake),
        )
        self._incoming = Incoming(
            *(self._session.receive, self._session.plain, loop.call_soon),
            portion=_PORTION_BYTES,
            whole=self._session.whole,
        )
        self._room = scratch  # of what has no place of its own
        self._is_placed = False  # what is read next
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._age: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<gRPC connection, {self._session}>"

    def stop(self) -> None:
        """Take no new calls, and close after the last one."""
        self._session.stop()

    def look(self, now_s: float) -> None:
        """Give up what the client takes too long for."""
        if self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            if self._session.look(unread, now_s):
                self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._incoming.begin(self._transport)
        self._look_after()
        if self._options.max_connection_age_ms:
            share = 1 + random.uniform(-_AGE_JITTER, _AGE_JITTER)
            delay_s = share * self._options.max_connection_age_ms / 1000
            self._age = self._loop.call_later(delay_s, self._retire)
        self._session.flush()
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whom it concerns."""
        self._transport = None
        self._incoming.end()
        for timer in (self._watch, self._age, self._linger):
            if timer is not None:
                timer.cancel()
        self._session.lost()
        self._closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what is read next: a long piece of a message where it belongs."""
        place = self._incoming.place(self._session.place)
        self._is_placed = place is not None
        return self._room if place is None else place

    def buffer_updated(self, nbytes: int) -> None:
        """So much was read."""
        # Asked for again: to keep the place would keep the message, also of a call that is over.
        place = self._session.place() if self._is_placed else None
        room = self._room if place is None else place
        if place is not None:
            self._room = self._scratch[:_BEGINNING_BYTES]
        elif nbytes == len(room):
            self._room = self._scratch
        self._incoming.came(room[:nbytes], len(room))

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self._session.pause()

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._session.resume()

    # -- the session's calls

    def _write(self, parts: Sequence[Part]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    def _close(self) -> None:
        """Close when all is sent; a client that does not take it is not waited for."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._linger = self._loop.call_later(_LINGER_S, self.abort)

    # -- timers

    def _look_after(self) -> None:
        """Ping a client that is silent, for as long as the connection lasts."""
        delay_s = self._session.watch()
        if delay_s is None:
            self.abort()
        elif math.isfinite(delay_s):
            self._watch = self._loop.call_later(delay_s, self._look_after)

    def _retire(self) -> None:
        """The connection is old: let it end, and see that it does."""
        self._session.retire()
        if self._options.max_connection_age_grace_ms:
            delay_s = self._options.max_connection_age_grace_ms / 1000
            self._age = self._loop.call_later(delay_s, self.abort)


# -- TLS: the certificates that the options name, as asyncio wants them


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """A context that speaks HTTP/2 to those who have the right certificates.

    Raises ServerError if a file cannot be read, or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # RFC 9113, section 9.2.1
    context.set_alpn_protocols(["h2"])
    with _reading(f"'{options.certificate}' with the key '{options.key}'"):
        context.load_cert_chain(options.certificate, options.key)
    if options.demands_client_certificate:
        with _reading(f"the root certificates '{options.root}'"):
            context.load_verify_locations(options.root)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        raise invalid_arg(f"cannot use {what} for gRPC: {error}") from error
