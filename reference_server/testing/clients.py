"""Clients of both frontends without ports, and the event loop of the frontends.

HTTP bytes and gRPC messages are passed to the same handlers as in a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from reference_server.core.backlog import Backlog
from reference_server.core.errors import ServerError
from reference_server.frontends.event_loop import run_on
from reference_server.frontends.grpc.calls import Method
from reference_server.frontends.http.connection import HttpConnection
from reference_server.frontends.http.request import Request

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_SCRATCH_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The reply to an HTTP request.

    Attributes:
        status: the status code.
        headers: the headers; names are case-insensitive.
        body: the body without chunk headers.
        raw: all bytes of the reply, as sent on the connection.
    """

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    raw: bytes

    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """Return the body parsed as JSON.

        Raises:
            ValueError: the body is not JSON.
        """
        return json.loads(self.body)


class HttpClient:
    """Sends requests to `handle`, each on its own connection.

    Use it on any thread except the loop's.
    """

    def __init__(
        self,
        handle: Callable[[Request], None],
        loop: asyncio.AbstractEventLoop,
        max_input: int | None = None,
    ) -> None:
        self._handle = handle
        self._loop = loop
        self._max_input = max_input

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """Send a request and return the reply. Blocks.

        Content-Length is added unless `headers` contain it.
        """
        fields = {"Content-Length": str(len(body))} if body or method == "POST" else {}
        fields.update(headers)
        lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {fields[key]}" for key in fields), "", ""]
        raw = self.exchange("\r\n".join(lines).encode("latin-1") + body)
        response = http.client.HTTPResponse(_Received(raw), method=method)  # type: ignore[arg-type]
        response.begin()
        return HttpReply(response.status, response.headers, response.read(), raw)

    def exchange(self, data: bytes) -> bytes:
        """Send bytes, half-close, and return all bytes of the replies. Blocks."""
        ended: Future[bytes] = Future()

        def begin() -> None:
            _Exchange(data, ended, self._loop).begin(self._handle, self._max_input)

        # Handlers must run on the loop's thread, as in a server.
        self._loop.call_soon_threadsafe(begin)
        return ended.result()


def _ignore(connection: HttpConnection) -> None:
    pass


class _Received:
    """Bytes in place of the socket that the standard library's parser expects."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


class _Exchange(asyncio.Transport):
    """A transport that provides `data`, and returns the written bytes when it is closed."""

    def __init__(self, data: bytes, ended: Future[bytes], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._unread = memoryview(data)
        self._written = bytearray()
        self._ended = ended
        self._loop = loop
        self._is_reading = True

    def begin(self, handle: Callable[[Request], None], max_input: int | None) -> None:
        """Make the connection, and let it read."""
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._connection = HttpConnection(
            handle, self._loop.call_soon, scratch, _ignore, _ignore, max_input
        )
        self._connection.connection_made(self)
        self._feed()

    def _feed(self) -> None:
        while self._unread and self._is_reading and not self.is_closing():
            buffer = self._connection.get_buffer(-1)
            piece, self._unread = self._unread[: len(buffer)], self._unread[len(buffer) :]
            buffer[: len(piece)] = piece
            self._connection.buffer_updated(len(piece))
        if self._is_reading and not self.is_closing():
            self._connection.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written += data

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._loop.call_soon(self._feed)

    def close(self) -> None:
        if not self._ended.done():
            self._ended.set_result(bytes(self._written))

    abort = close

    def is_closing(self) -> bool:
        return self._ended.done()


class GrpcClient:
    """Calls the methods of `table`. Use it on any thread except the loop's."""

    def __init__(self, table: Mapping[str, Method], loop: asyncio.AbstractEventLoop) -> None:
        self._table = table
        self._loop = loop

    def call(
        self, method: str, requests: Sequence[Message], metadata: Mapping[str, str]
    ) -> list[Message]:
        """Send all requests of a call, and return all responses when it has ended. Blocks.

        Raises:
            ServerError: the call ended with an error.
            KeyError: there is no such method.
        """
        start = self._table[f"/{_SERVICE.full_name}/{method}"].start
        call = _Call(metadata)

        def begin() -> None:
            running = start(call)
            for request in requests:
                running.receive(request.SerializeToString())
            running.half_close()

        self._loop.call_soon_threadsafe(begin)
        response_type = GetMessageClass(_SERVICE.methods_by_name[method].output_type)
        return [response_type.FromString(message) for message in call.ended.result()]


class _Call:
    """One call, as its method sees it."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self._metadata = {name.lower(): value for name, value in metadata.items()}
        self._messages: list[bytes] = []
        self.ended: Future[list[bytes]] = Future()

    def metadata(self, name: str) -> str | None:
        return self._metadata.get(name)

    def fields(self) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), value.encode()) for name, value in self._metadata.items()]

    def send(self, *message: bytes | memoryview) -> None:
        self._messages.append(b"".join(message))

    def watch(self, backlog: Backlog) -> None:
        """Ignore it: every message is consumed at once."""

    def hold(self, *, held: bool) -> None:
        """Ignore it: all messages are already sent."""

    def end(self, error: ServerError | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(self._messages)
        else:
            self.ended.set_exception(error)


T = TypeVar("T")


@contextlib.contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop on another thread until the block is left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    """Run `call` on the loop's thread, and return its result or raise its error.

    Blocks; must be called on another thread.
    """
    return run_on(loop, call).result()
