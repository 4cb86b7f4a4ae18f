"""A gRPC port: accepts connections, gives each a session, drains them when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from reference_server.core.backlog import Intake
from reference_server.core.errors import invalid_arg
from reference_server.frontends.connections import (
    BACKLOG,
    SCRATCH_BYTES,
    Incoming,
    OpenConnections,
    Report,
    Sweep,
    listen_error,
    report_nothing,
)
from reference_server.frontends.event_loop import CODECS, Background
from reference_server.frontends.grpc.calls import Method, Run
from reference_server.frontends.grpc.http2.sending import Part
from reference_server.frontends.grpc.session import Session
from reference_server.options import GrpcOptions, TimeLimits, TlsOptions

log = logging.getLogger(__name__)

#: Bytes handled between two reads of the clock. A call may have as few as thirty bytes.
_PORTION_BYTES = 1 << 9
#: The size of the read after a message was received in place. The next message is probably as
#: long, and bytes that are read before its buffer exists have to be copied.
_FIRST_READ_BYTES = 1 << 14
#: Time limit for sending the last bytes to a client.
_LINGER_S = 20.0
#: No time limit for a TLS handshake; asyncio's default is a minute.
_NO_LIMIT_S = 1e6
#: Connections of the same age do not all end at once: as in gRPC, the limit varies by a tenth.
_AGE_JITTER = 0.1


class GrpcListener:
    """Serves the methods in `table` on one port, on the event loop's thread.

    Call `open`, then `stop_accepting` and `drained`, then `close`.

    Args:
        options: address, port, TLS and channel options.
        table: the methods by full name.
        limits: time limits for clients.
        report: called when a connection or call ends abnormally.
        most_connections: the limit of open connections; 0 is no limit.
        intake: the memory budget for long messages.
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
        """Listen. Raises ServerError if the port is in use or a TLS file cannot be read."""
        options = self._options
        address = f"{options.address}:{options.port}"
        loop = asyncio.get_running_loop()
        context = None if options.tls is None else server_context(options.tls)
        # asyncio rejects a handshake timeout without TLS.
        handshake_s = None if context is None else self._limits.head_s or _NO_LIMIT_S
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
            raise listen_error(address, error) from error
        self._sweep = Sweep(self._connections, _Connection.check_timeouts, self._limits, loop)
        self._sweep.start()
        log.info("Started GRPCInferenceService at %s", address)

    def protocol_factory(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], asyncio.BufferedProtocol]:
        """Return a factory of protocol objects, one for each accepted connection on `loop`."""
        ours = self._connections
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        run = Background(loop, CODECS).run
        return lambda: _Connection(
            *(self._table, self._options, self._limits, loop, run, scratch),
            *(ours.opened, ours.closed, self._report, self._intake),
        )

    def stop_accepting(self) -> None:
        """Reject new connections, calls, and requests on streams. Calls in flight continue."""
        if self._server is not None:
            self._server.close()
        self._connections.stop_accepting()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def drained(self) -> None:
        """Return when no connection is left."""
        await self._connections.drained()

    def close(self) -> None:
        """Abort the open connections."""
        if self._sweep is not None:
            self._sweep.stop()
        for connection in self._connections:
            connection.abort()


class _Connection(asyncio.BufferedProtocol):
    """One client's connection: the socket and the timers of a session.

    `scratch` is a read buffer shared by all connections; its content is consumed before the next
    read.
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
            *(table, options, loop, run, self._write, self._close), *(limits, report, intake)
        )
        self._incoming = Incoming(
            *(self._session.receive, self._session.opaque_bytes, loop.call_soon),
            portion=_PORTION_BYTES,
            whole=self._session.whole,
        )
        self._scratch_part = scratch  # the buffer for the next read that is not in place
        self._is_in_place = False  # whether the next read goes into a message's own buffer
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._age: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<gRPC connection, {self._session}>"

    def stop(self) -> None:
        """Accept no new calls, and close after the last one."""
        self._session.stop()

    def check_timeouts(self, now_s: float) -> None:
        """End the calls, or the connection, if the client has exceeded a time limit."""
        if self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            if self._session.check_timeouts(unread, now_s):
                self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._incoming.begin(self._transport)
        self._keep_alive()
        if self._options.max_connection_age_ms:
            share = 1 + random.uniform(-_AGE_JITTER, _AGE_JITTER)
            delay_s = share * self._options.max_connection_age_ms / 1000
            self._age = self._loop.call_later(delay_s, self._retire)
        self._session.flush()
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._incoming.end()
        for timer in (self._watch, self._age, self._linger):
            if timer is not None:
                timer.cancel()
        self._session.lost()
        self._closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read: that of a long message, or the shared buffer."""
        buffer = self._incoming.buffer(self._session.message_buffer)
        self._is_in_place = buffer is not None
        return self._scratch_part if buffer is None else buffer

    def buffer_updated(self, nbytes: int) -> None:
        # Looked up again: a stored buffer would keep the message of an ended call alive.
        buffer = self._session.message_buffer() if self._is_in_place else None
        room = self._scratch_part if buffer is None else buffer
        if buffer is not None:
            self._scratch_part = self._scratch[:_FIRST_READ_BYTES]
        elif nbytes == len(room):
            self._scratch_part = self._scratch
        self._incoming.receive(room[:nbytes], len(room))

    def pause_writing(self) -> None:
        self._session.pause()

    def resume_writing(self) -> None:
        self._session.resume()

    # -- called by the session

    def _write(self, parts: Sequence[Part]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    def _close(self) -> None:
        """Close after everything is sent, within a time limit."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._linger = self._loop.call_later(_LINGER_S, self.abort)

    # -- timers

    def _keep_alive(self) -> None:
        """Ping a silent client, and schedule the next check."""
        delay_s = self._session.keep_alive()
        if delay_s is None:
            self.abort()
        elif math.isfinite(delay_s):
            self._watch = self._loop.call_later(delay_s, self._keep_alive)

    def _retire(self) -> None:
        """End the connection because of its age, after a grace period at the latest."""
        self._session.retire()
        if self._options.max_connection_age_grace_ms:
            delay_s = self._options.max_connection_age_grace_ms / 1000
            self._age = self._loop.call_later(delay_s, self.abort)


# -- TLS


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a TLS context for HTTP/2 with the certificates of the options.

    Raises:
        ServerError: a file cannot be read, or contains no certificate or key.
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
    except OSError as error:  # includes ssl.SSLError
        raise invalid_arg(f"cannot use {what} for gRPC: {error}") from error
