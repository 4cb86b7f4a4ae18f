"""One HTTP/1.1 connection: bytes to requests, replies to bytes, in order.

Requests of one connection are handled one after the other, as Triton does; those that a client
pipelines wait. The grammar is llhttp's. Bodies that do not fit the first read are received
straight into the memory that tensors will view.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import httptools
import numpy as np

from reference_server.core.cancellation import Cancellation
from reference_server.fronts.http import errors, heads
from reference_server.fronts.http.heads import Header

#: Bytes of a body still to come from which it is received in place.
_IN_PLACE_BYTES = 8192
#: Requests of one connection that may wait before reading pauses.
_MAX_PIPELINED = 32
#: More bytes than any body has.
_UNLIMITED = 1 << 64
#: Where tensor data begins in a body that is received in place, for aligned NumPy views.
_ALIGNMENT = 64
#: The method of a request line that is in order but for llhttp not knowing the method.
_METHOD = re.compile(rb"[A-Z]+(?= \S+ HTTP/1\.[01]\r\n)")
#: Any method that llhttp knows and no operation answers to.
_REFUSED_METHOD = b"TRACE"

Part = bytes | memoryview


class Request:
    """One HTTP request, and the way to answer it, on the loop's thread.

    Either `reply` exactly once, or `begin_chunks`, any number of `send_chunk`, and `end_chunks`.
    `cancellation` belongs to what is done for it: it is set when the client is gone.
    """

    __slots__ = (
        "_connection",
        "body",
        "cancellation",
        "fields",
        "headers",
        "keep_alive",
        "method",
        "url",
        "version",
    )

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.url = b""
        self.method = ""
        self.version = "1.1"
        self.keep_alive = True
        self.headers: dict[bytes, bytes] = {}  # by lower-case name, the first of each
        self.fields: list[Header] = []  # all of them, as they were sent
        self.body: memoryview = memoryview(b"")
        self.cancellation: Cancellation | None = None

    def header(self, name: bytes) -> str | None:
        """The value of a header, by its lower-case name."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def reply(
        self,
        status: bytes,
        parts: Sequence[Part] = (),
        headers: Sequence[Header] = (),
        *,
        content_type: bytes | None = b"application/json",
    ) -> None:
        """Send the reply; `headers` stand between the type and the length.

        Without a `content_type` the type is plain text and goes last, as in Triton's HTTP library.
        """
        self._connection.reply(self, status, parts, headers, content_type)

    def begin_chunks(self, status: bytes, content_type: bytes) -> None:
        """Begin a reply whose length is not known yet."""
        self._connection.begin_chunks(self, status, content_type)

    def send_chunk(self, data: bytes) -> None:
        """Send a piece of its body, which is not empty."""
        self._connection.send_chunk(data)

    def end_chunks(self) -> None:
        """The body is complete."""
        self._connection.end_chunks(self)

    def reply_error(self, status: bytes, message: str, *, as_json: bool) -> None:
        """Send an error body. Triton types some of them as JSON and leaves others plain."""
        self.reply(
            status,
            [errors.body(message)],
            content_type=b"application/json" if as_json else None,
        )


class HttpConnection(asyncio.BufferedProtocol):
    """One client's connection. Everything happens on the loop's thread.

    `handle` is called with each complete request; `scratch` is a buffer that all connections of
    a loop share, since what is in it is consumed before the next read; `opened` and `closed`
    report the connection's life. Bodies of more than `max_body` bytes are refused unread.
    """

    def __init__(
        self,
        handle: Callable[[Request], None],
        scratch: memoryview,
        opened: Callable[[HttpConnection], None],
        closed: Callable[[HttpConnection], None],
        max_body: int | None = None,
    ) -> None:
        self._max_body = _UNLIMITED if max_body is None else max_body
        self._handle = handle
        self._scratch = scratch
        self._opened = opened
        self._closed = closed
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._incoming = Request(self)  # the request being read
        self._chunks: list[bytes] = []  # its body so far
        self._received = 0  # the size of that
        self._headers_done = False
        self._whole = False
        self._completed = 0  # messages that ended within the bytes being read
        self._place: memoryview | None = None  # its body, when it is received in place
        self._filled = 0
        self._current: Request | None = None  # the request being handled
        self._is_chunked = False  # the reply to it has begun
        self._waiting: deque[Request] = deque()
        self._advancing = False
        self._reading_paused = False
        self._closing = False

    @property
    def is_idle(self) -> bool:
        """True if no request is being handled or waits."""
        return self._current is None and not self._waiting

    def close(self) -> None:
        """Take no more requests; close as soon as those in flight are answered."""
        self._closing = True
        if self.is_idle and self._transport is not None:
            self._transport.close()

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._opened(self)
        if self._closing:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        self._cancel_current()
        self._closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._place is not None:
            return self._place[self._filled :]
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._place is not None:
            self._filled += nbytes
            self._check_filled()
            return
        data: bytes | memoryview = self._scratch[:nbytes]
        while data and not self._closing:
            self._completed = 0
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._past_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserInvalidMethodError:
                data = self._with_refused_method(data)
            except httptools.HttpParserError:
                self.close()
                return
            else:
                if self._headers_done and not self._whole:
                    self._receive_in_place()
                return
            self._parser = httptools.HttpRequestParser(self)

    def eof_received(self) -> bool:
        # A client that half-closes still gets the answers to what it sent. Only one that stops
        # while it is being answered is taken for gone: it seldom tells the two apart.
        self._closing = True
        if self._is_chunked:
            self._cancel_current()
        return not self.is_idle

    def _cancel_current(self) -> None:
        if self._current is not None and self._current.cancellation is not None:
            self._current.cancellation.cancel()

    # -- llhttp's calls

    def on_message_begin(self) -> None:
        self._incoming = Request(self)
        self._chunks = []
        self._received = 0
        self._headers_done = False
        self._whole = False

    def on_url(self, url: bytes) -> None:
        self._incoming.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers.setdefault(name.lower(), value)
        self._incoming.fields.append((name, value))

    def on_headers_complete(self) -> None:
        request = self._incoming
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        self._headers_done = True
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._write([b"HTTP/1.1 100 Continue\r\n\r\n"])

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        if self._received <= self._max_body:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() and b"content-length" in self._incoming.headers:
            return  # see _past_upgrade
        self._whole = True
        self._completed += 1
        if self._received > self._max_body:
            self._chunks = []
            self._refuse_body(self._too_large(self._received))
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._incoming.body = memoryview(body)
        self._chunks = []
        self._complete()

    # -- reading

    def _receive_in_place(self) -> None:
        """Read the rest of a long body past the parser, straight to where it will be used."""
        headers = self._incoming.headers
        if b"transfer-encoding" in headers:
            return
        length = int(headers.get(b"content-length", b"0"))
        if length - self._received >= _IN_PLACE_BYTES:
            self._make_place(length)

    def _make_place(self, length: int) -> None:
        """Go on reading the body in memory of its own, where what has come of it is put first."""
        headers = self._incoming.headers
        if length > self._max_body:
            self._refuse_body(self._too_large(length))
            return
        try:
            place = _aligned(length, _number(headers.get(b"inference-header-content-length")))
        except (MemoryError, ValueError):  # ValueError: more than any memory can have
            self._refuse_body(f"a request body of {length} bytes does not fit the server's memory")
            return
        self._filled = 0
        for chunk in self._chunks:
            place[self._filled : self._filled + len(chunk)] = chunk
            self._filled += len(chunk)
        self._chunks = []
        self._place = place
        self._check_filled()

    def _refuse_body(self, reason: str) -> None:
        """Answer the request that is being read, whose body will not be; the connection ends."""
        if self._current is not None:
            self.close()
            return
        self._incoming.keep_alive = False
        self._current = self._incoming
        self._incoming.reply_error(errors.BAD_REQUEST, reason, as_json=True)

    def _too_large(self, size: int) -> str:
        return (
            f"request size of {size} bytes exceeds the maximum allowed input size of "
            f"{self._max_body} bytes. Use --http-max-input-size to increase the limit."
        )

    def _check_filled(self) -> None:
        if self._place is not None and self._filled == len(self._place):
            self._incoming.body = self._place
            self._place = None
            self._parser = httptools.HttpRequestParser(self)
            self._complete()

    def _past_upgrade(self, data: memoryview | bytes) -> memoryview | bytes:
        """What follows a request that offers another protocol: Triton never takes the offer.

        llhttp ends such a request with its head; a body is read here. Returns what lies behind.
        """
        if self._whole:
            return data
        length = int(self._incoming.headers[b"content-length"])
        self._chunks = [bytes(data[:length])]
        self._make_place(length)
        return data[length:]

    def _complete(self) -> None:
        request = self._incoming
        if self._current is None:
            self._start(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= _MAX_PIPELINED and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _start(self, request: Request) -> None:
        self._current = request
        if request.method == "CONNECT" or request.url == b"*":
            self._drop()  # neither names anything that is here; Triton's library does the same
            return
        self._handle(request)

    def _drop(self) -> None:
        """Close at once, without a byte, whatever waits."""
        self._waiting.clear()
        if self._transport is not None:
            self._transport.close()

    def _with_refused_method(self, data: bytes | memoryview) -> bytes:
        """`data` with a known method in place of one that llhttp stops at; Triton answers both.

        Nothing, and the connection ends, if `data` does not begin with such a request.
        """
        found = _METHOD.match(data)
        if found is None or self._completed:
            self.close()
            return b""
        return _REFUSED_METHOD + data[found.end() :]

    # -- writing

    def reply(
        self,
        request: Request,
        status: bytes,
        parts: Sequence[Part],
        headers: Sequence[Header],
        content_type: bytes | None,
    ) -> None:
        """Write the reply to the current request, then go on with the next."""
        self._current = None
        if self._transport is None:
            return
        length = sum(map(len, parts))
        head = heads.head(
            request.version, request.keep_alive, status, content_type, headers, length
        )
        self._write([head, *parts])
        self._replied(request)

    def begin_chunks(self, request: Request, status: bytes, content_type: bytes) -> None:
        """Write the head of a chunked reply to the current request."""
        self._is_chunked = True
        self._write([heads.chunked(request.version, request.keep_alive, status, content_type)])

    def send_chunk(self, data: bytes) -> None:
        """Write one chunk of the body."""
        self._write([b"%x\r\n%b\r\n" % (len(data), data)])

    def end_chunks(self, request: Request) -> None:
        """Write the end of the body, then go on with the next request."""
        self._current = None
        self._is_chunked = False
        if self._transport is not None:
            self._write([b"0\r\n\r\n"])
            self._replied(request)

    def _replied(self, request: Request) -> None:
        assert self._transport is not None
        if not request.keep_alive:
            self._waiting.clear()
        if not request.keep_alive or (self._closing and not self._waiting):
            self._transport.close()
        elif not self._advancing:
            self._advance()

    def _advance(self) -> None:
        """Handle what waits, until a request is not answered at once.

        A loop, because replies given at once would nest as deep as a client pipelines.
        """
        self._advancing = True
        try:
            while self._waiting and self._current is None:
                self._start_next()
        finally:
            self._advancing = False

    def _start_next(self) -> None:
        request = self._waiting.popleft()
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()
        self._start(request)

    def _write(self, parts: Sequence[Part]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)


def _aligned(length: int, data_offset: int) -> memoryview:
    """`length` writable bytes, placed so that byte `data_offset` is aligned for any data type."""
    memory = np.empty(length + _ALIGNMENT, np.uint8)
    address = memory.__array_interface__["data"][0]
    start = -(address + data_offset) % _ALIGNMENT
    return memory.data[start : start + length]


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else 0
