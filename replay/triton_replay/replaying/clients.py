"""Connections of a replay: one request at a time over HTTP, concurrent calls over gRPC."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httptools

from triton_replay.addresses import Address
from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.wire.bodies import Body, Headers, content_type, head_lines, header
from triton_replay.wire.grpc_channel import ActiveCall, CallFailed, GrpcCall, GrpcChannel
from triton_replay.wire.grpc_messages import STREAMING, MessageSplitter
from triton_replay.wire.http2_client import REFUSED
from triton_replay.wire.http_messages import Message, ResponseReader

_OF_THE_CONNECTION: Final = frozenset(
    ("connection", "content-length", "expect", "host", "keep-alive", "transfer-encoding")
)
_NO_LIMIT: Final = 2**62


def request_head(request: Request, server: Address, headers: Headers) -> bytes:
    """Return the request line and the headers of a recorded request, without redacted headers.

    Args:
        request: The recorded request.
        server: Host and port, for the header Host unless `headers` has it.
        headers: Headers that replace recorded headers of the same name.
    """
    replaced = {name.lower() for name, _ in headers} | _OF_THE_CONNECTION
    kept = (
        (name, value)
        for name, value in request.headers
        if name.lower() not in replaced and value != REDACTED_VALUE
    )
    sent = (*kept, *headers)
    kind = content_type(sent) if request.body_size else ()
    lines = head_lines(request.method, request.target, server, (*sent, *kind))
    if request.body_size or request.method != "GET":
        lines.append(f"Content-Length: {request.body_size}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@dataclass(eq=False)
class HttpConnection(asyncio.Protocol):
    """A connection that opens when it is first needed, and again after it was closed.

    Args:
        server: Address of the server.
        clock: Returns nanoseconds since the start of the replay.
        headers: Headers that replace recorded headers of the same name.
        timeout: Seconds until a request fails and the connection is closed.
        tls: Context of TLS, or None.
    """

    server: Address
    clock: Callable[[], int]
    headers: Headers
    timeout: float
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Message] | None = None
        self._number = 0
        self._responses = self._reader()

    async def send(self, exchange: Exchange) -> Response:
        """Send a request and return the response. Raise NotAnswered if it is not complete."""
        request = exchange.request
        await self.open()
        assert self._transport is not None
        self._number = request.number
        self._answer = asyncio.get_running_loop().create_future()
        head = request_head(request, self.server, self.headers)
        try:
            self._transport.writelines([head, request.body])
            return self._response(await asyncio.wait_for(self._answer, self.timeout), "complete")
        except asyncio.TimeoutError as error:
            self.close()
            nothing = _given_up(request, self.clock())
            raise NotAnswered(f"no response within {self.timeout:g} s", nothing) from error
        finally:
            self._answer = None

    def _response(self, message: Message, ended: str) -> Response:
        return Response.of(self._number, message, self.clock(), ended)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def open(self) -> None:
        """Connect if the connection is not open. Raise NotAnswered if that fails."""
        if self._transport is not None and not self._transport.is_closing():
            return
        self._responses = self._reader()
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(lambda: self, *self.server, ssl=self.tls)
        except OSError as error:
            raise NotAnswered(f"no connection: {error.strerror or error}") from error
        self._transport = transport

    def _reader(self) -> ResponseReader:
        return ResponseReader(self.clock, _NO_LIMIT, self._done)

    def data_received(self, data: bytes) -> None:
        try:
            self._responses.feed(data)
        except httptools.HttpParserError as error:
            self._fail(f"the response is not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        message = self._responses.cut_off()
        if message is not None and message.until_close:
            self._done(message)
        else:
            self._fail("the server closed the connection", message)

    def _done(self, message: Message) -> None:
        if not self._responses.keeps_open:
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def _fail(self, reason: str, message: Message | None = None) -> None:
        if self._answer is not None and not self._answer.done():
            response = None if message is None else self._response(message, "server")
            self._answer.set_exception(NotAnswered(reason, response))


# -- the interface of the clients

REDACTED_VALUE: Final = "redacted"
"""Value of redacted headers in a capture. Such headers are not sent."""


class NotAnswered(Exception):
    """No complete response arrived; `response` is the incomplete one, or None."""

    def __init__(self, reason: str, response: Response | None = None) -> None:
        super().__init__(reason)
        self.response = response


def _given_up(request: Request, now: int) -> Response:
    """Return the record of a response that the client did not wait for."""
    return Response(request.number, now, now, 0, (), 0, ended="client")


# -- gRPC: recorded calls, and streams with their recorded timing

_NOT_METADATA: Final = frozenset(("content-type", "te", "user-agent"))
_DEADLINE: Final = re.compile(r"(\d{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600, "M": 60, "S": 1, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@dataclass(eq=False)
class GrpcConnection:
    """A connection to the server for concurrent calls.

    Args:
        server: Address of the server.
        clock: Returns nanoseconds since the start of the replay.
        put: Receives the messages of streams in both directions.
        headers: Metadata that replace recorded metadata of the same name.
        timeout: Seconds until a call is cancelled.
        speed: Factor of the speed within a stream; None sends without pauses.
        tls: Context of TLS, or None.
    """

    server: Address
    clock: Callable[[], int]
    put: Callable[[StreamMessage], None]
    headers: Headers
    timeout: float
    speed: float | None
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._channel = GrpcChannel(self.server, self.tls)

    async def open(self) -> None:
        """Connect. Raise NotAnswered if that fails."""
        try:
            await self._channel.open()
        except CallFailed as error:
            raise NotAnswered(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    async def send(self, exchange: Exchange) -> Response:
        """Make a call and return its response; `ended` "client" means that its deadline passed.

        Raises:
            NotAnswered: No complete response arrived.
        """
        request = exchange.request
        metadata = _metadata(request, self.headers)
        deadline = _deadline(metadata)
        try:
            limit = min(deadline, self.timeout)
            call = await asyncio.wait_for(self._call(exchange, metadata), limit)
        except asyncio.TimeoutError as error:
            nothing = _given_up(request, self.clock())
            if deadline <= self.timeout:
                return nothing
            raise NotAnswered(f"no response within {self.timeout:g} s", nothing) from error
        except CallFailed as error:
            raise NotAnswered(str(error)) from error
        end = self.clock()
        return Response(
            number=request.number,
            at=end,
            end=end,
            status=int(header(call.headers, ":status") or 0),
            headers=tuple(pair for pair in call.headers if pair[0] != ":status"),
            body_size=len(call.body),
            body=call.body,
            trailers=call.trailers,
        )

    async def _call(self, exchange: Exchange, metadata: Headers) -> GrpcCall:
        request = exchange.request
        if not request.target.endswith(STREAMING):
            while True:
                active = await self._channel.start(request.target, metadata)
                active.send(request.body, ends=True)
                try:
                    return await active.response()
                except CallFailed as error:
                    # A busy server may refuse a call that its limit allows, because it counts an
                    # ended call for a moment longer than the client. `send` limits the time.
                    if str(error) != REFUSED:
                        raise
        splitter = MessageSplitter()

        def receive(data: bytes) -> None:
            for message in splitter.feed(data):
                self.put(_message(request.number, False, self.clock(), message))

        active = await self._channel.start(request.target, metadata, receive)
        sending = asyncio.ensure_future(self._send_messages(exchange, active))
        try:
            return await active.response()
        finally:
            sending.cancel()

    async def _send_messages(self, exchange: Exchange, active: ActiveCall) -> None:
        """Send the client's messages of a stream, each at its recorded time after the first."""
        start = self.clock()
        request = exchange.request
        later = [message for message in exchange.messages if message.sent]
        active.send(request.body, ends=not later)
        for left, message in enumerate(later, 1 - len(later)):
            if self.speed is not None:
                wait = (message.at - request.at) / self.speed - (self.clock() - start)
                await asyncio.sleep(max(wait, 0) / 1e9)
            self.put(_message(request.number, True, self.clock(), message.body))
            active.send(message.body, ends=not left)


def _message(number: int, sent: bool, at: int, body: Body) -> StreamMessage:
    return StreamMessage(number, sent, at, len(body), body)


def _metadata(request: Request, headers: Headers) -> Headers:
    """Return the recorded metadata, without those of the connection, and `headers`."""
    given = {name.lower() for name, _ in headers}
    kept = (
        (name, value)
        for name, value in request.headers
        if name not in given and name not in _NOT_METADATA and value != REDACTED_VALUE
    )
    return (*kept, *headers)


def _deadline(metadata: Headers) -> float:
    """Return the deadline of a call in seconds, or infinity."""
    found = _DEADLINE.fullmatch(header(metadata, "grpc-timeout"))
    return int(found[1]) * _SECONDS[found[2]] if found else math.inf


Client = HttpConnection | GrpcConnection
"""A connection to the server."""
