"""An HTTP connection of a replay: one request at a time, and the answer with its times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import httptools

from triton_replay.addresses import Address
from triton_replay.capture.records import Request
from triton_replay.protocol.http_bodies import Headers
from triton_replay.protocol.http_messages import Message, ResponseReader

_OF_THE_CONNECTION: Final = frozenset(
    ("connection", "content-length", "expect", "host", "keep-alive", "transfer-encoding")
)
_NO_LIMIT: Final = 2**62


class NotAnswered(Exception):
    """No whole response came; `message` is what came of it."""

    def __init__(self, reason: str, message: Message | None = None) -> None:
        super().__init__(reason)
        self.message = message


def request_head(request: Request, server: Address, headers: Headers) -> bytes:
    """The head of a recorded request as it is sent to `server`.

    headers: take the place of recorded ones of the same name. Redacted ones are left out.
    """
    replaced = {name.lower() for name, _ in headers} | _OF_THE_CONNECTION
    lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {server}"]
    for name, value in request.headers:
        if name.lower() not in replaced and value != "redacted":
            lines.append(f"{name}: {value}")
    lines.extend(f"{name}: {value}" for name, value in headers)
    if request.body_size or request.method != "GET":
        lines.append(f"Content-Length: {request.body_size}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class HttpConnection(asyncio.Protocol):
    """A connection to the server, opened when first needed and again after it was closed."""

    def __init__(self, server: Address, clock: Callable[[], int]) -> None:
        self._server = server
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Message] | None = None
        self._responses = self._reader()

    async def ask(self, pieces: Iterable[bytes | bytearray | memoryview]) -> Message:
        """Send a request and wait for the whole answer. Raises NotAnswered.

        A connection that the server closed before it could get the request is opened again.
        """
        await self.open()
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._transport.writelines(list(pieces))
            return await self._answer
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def open(self) -> None:
        """Connect, unless it is. Raises NotAnswered."""
        if self._transport is not None and not self._transport.is_closing():
            return
        self._responses = self._reader()
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(lambda: self, *self._server)
        except OSError as error:
            raise NotAnswered(f"no connection: {error.strerror or error}") from error
        self._transport = transport

    def _reader(self) -> ResponseReader:
        return ResponseReader(self._clock, _NO_LIMIT, self._done)

    def data_received(self, data: bytes) -> None:
        try:
            self._responses.feed(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is no HTTP: {error}")
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
            self._answer.set_exception(NotAnswered(reason, message))
