"""Concurrent gRPC calls on one HTTP/2 connection in asyncio; each call returns at its end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import unquote

from triton_replay.addresses import Address
from triton_replay.wire import http2 as h2
from triton_replay.wire.bodies import Body, Headers, header
from triton_replay.wire.grpc_messages import STATUS_NAMES
from triton_replay.wire.http2_client import Http2Client, call_fields
from triton_replay.wire.sockets import CLOSED

_CANCEL: Final = 8
"""Error code of HTTP/2 (CANCEL) for calls whose response the client no longer needs."""


class CallFailed(Exception):
    """A call ended without a complete response."""


@dataclass(eq=False)
class GrpcCall:
    """A call. Headers, trailers and messages are as on the wire, without decoding.

    Args:
        fields: Header fields of the request.
        done: Completed with the response, or with CallFailed.
        on_data: Receives the data of the response; None collects them in `body`.
    """

    fields: list[tuple[str, str]]
    done: asyncio.Future[None]
    on_data: Callable[[bytes], None] | None = None
    stream: int = 0
    received: int = 0
    headers: Headers = ()
    """Headers of the response. A response without messages has its status here, not in trailers."""
    trailers: Headers = ()
    body: bytearray = field(default_factory=bytearray)

    @property
    def status(self) -> tuple[str, str]:
        """The name of the response's status, e.g. "OK", and the error text."""
        pairs = (*self.trailers, *self.headers)
        code = header(pairs, "grpc-status")
        known = code.isdigit() and int(code) < len(STATUS_NAMES)
        name = STATUS_NAMES[int(code)] if known else f"status {code}"
        return name, unquote(header(pairs, "grpc-message"))


class GrpcChannel:
    """Calls to one server. Connects for the first call, and again after the connection ended.

    Args:
        server: Address of the server.
        tls: Context of TLS, or None.
    """

    def __init__(self, server: Address, tls: ssl.SSLContext | None = None) -> None:
        self._server = server
        self._tls = tls
        self._connecting = asyncio.Lock()
        self._connections: list[_Connection] = []

    async def open(self) -> _Connection:
        """Connect unless a connection accepts calls. Raise CallFailed if that fails."""
        async with self._connecting:
            self._connections = [one for one in self._connections if not one.is_closed]
            if not self._connections or self._connections[-1].is_leaving:
                loop = asyncio.get_running_loop()
                try:
                    _, made = await loop.create_connection(
                        _Connection, *self._server, ssl=self._tls
                    )
                except OSError as error:
                    raise CallFailed(f"no connection: {error.strerror or error}") from error
                self._connections.append(made)
            return self._connections[-1]

    async def start(
        self, path: str, metadata: Headers, on_data: Callable[[bytes], None] | None = None
    ) -> ActiveCall:
        """Start a call as soon as the server accepts another call.

        Args:
            path: Path of the method.
            metadata: Metadata of the call, encoded as on the wire.
            on_data: Receives the data of the response; None collects them.

        Raises:
            CallFailed: No connection is possible.
        """
        done = asyncio.get_running_loop().create_future()
        fields = call_fields(path, self._server, metadata, "https" if self._tls else "http")
        call = GrpcCall(fields, done, on_data)
        for _ in range(2):  # the server may end an idle connection at any time
            connection = await self.open()
            if await connection.begin(call):
                return ActiveCall(connection, call)
        raise CallFailed("the server accepts no more calls on the connection")

    def close(self) -> None:
        """Close all connections; calls in progress fail."""
        for connection in self._connections:
            connection.close()


class ActiveCall:
    """A call in progress."""

    def __init__(self, connection: _Connection, call: GrpcCall) -> None:
        self._connection = connection
        self._call = call

    def send(self, message: Body, *, ends: bool) -> None:
        """Send a message that has its prefix; `ends` marks the last message."""
        self._connection.send(self._call, message, ends=ends)

    async def response(self) -> GrpcCall:
        """Wait for the end of the call. Cancelling this cancels the call.

        Raises:
            CallFailed: The response is incomplete, or has no status.
        """
        try:
            await self._call.done
        finally:
            self._connection.cancel(self._call)
        return self._call


class _Connection(Http2Client[GrpcCall], asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        super().__init__()
        self._transport: asyncio.Transport | None = None
        self._waiting: list[asyncio.Future[None]] = []
        """Calls that wait for the server's SETTINGS, or until it accepts more calls."""
        self._failure = ""
        """Reason why the connection ended, or ""."""

    # -- used by the channel

    @property
    def is_closed(self) -> bool:
        """True after the end of the connection."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_leaving(self) -> bool:
        """True if the connection accepts no new calls."""
        return self._is_leaving

    async def begin(self, call: GrpcCall) -> bool:
        """Begin a call.

        Returns:
            False if the server announced the end of the connection.

        Raises:
            CallFailed: The connection ended.
        """
        while not ((self._has_settings and len(self._calls) < self._max_calls) or self.is_leaving):
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self._failure:
            raise CallFailed(self._failure)
        if self.is_leaving:
            return False
        self._begin(call)
        self._flush()
        return True

    def send(self, call: GrpcCall, message: Body, *, ends: bool) -> None:
        """Send a message, unless the call is over."""
        if call.stream:
            self._send_data(call.stream, message, ends=ends)
            self._flush()

    def cancel(self, call: GrpcCall) -> None:
        """Cancel a call, unless it is over."""
        if call.stream:
            code = _CANCEL.to_bytes(4, "big")
            self._out.append(h2.frame(h2.RST_STREAM, 0, call.stream, code))
            self._end(call.stream, (), "cancelled")
            self._flush()
            self._wake()

    def close(self) -> None:
        """Close the connection; calls in progress fail."""
        if self._transport is not None:
            self._transport.close()

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(h2.PREFACE + h2.opening())

    def data_received(self, data: bytes) -> None:
        try:
            self._receive(data)
        except h2.NotHttp2 as error:
            self._over(f"the response is not gRPC: {error}")
            return
        self._flush()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over(CLOSED)

    # -- hooks of Http2Client

    def _block(self, call: GrpcCall) -> bytes:
        return self._encoder.encode(call.fields)

    def _data(self, call: GrpcCall, data: bytes) -> None:
        if call.on_data is not None:
            call.on_data(data)
        else:
            call.body += data

    def _head(self, call: GrpcCall, headers: Headers) -> None:
        if not header(headers, ":status").startswith("1"):  # otherwise an interim response
            call.headers = headers

    def _ended(self, call: GrpcCall, trailers: Headers, failure: str) -> None:
        if call.headers:
            call.trailers = trailers
        else:
            call.headers = trailers
        if not failure and not header((*call.trailers, *call.headers), "grpc-status"):
            status = header(call.headers, ":status") or "none"
            failure = f"the response has no gRPC status; its HTTP status is {status}"
        if not call.done.done():
            if failure:
                call.done.set_exception(CallFailed(failure))
            else:
                call.done.set_result(None)

    # -- helpers

    def _flush(self) -> None:
        if self._held and self._has_settings:
            self._send_held()
        if self._out and self._transport is not None:
            self._transport.writelines(self._out)
        self._out.clear()
        if self._is_leaving and not self._calls:
            self.close()

    def _over(self, reason: str) -> None:
        if not self._is_leaving:
            self._is_leaving, self._failure = True, reason
        self._fail(list(self._calls), reason)
        self._wake()
        self.close()

    def _wake(self) -> None:
        """Let waiting calls try again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
