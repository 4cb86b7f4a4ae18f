"""The HTTP tap: reads both directions of one connection beside the proxy that passes them on.

It never changes or delays a byte. What it cannot read (an upgrade, bytes that are no HTTP) ends the
recording of this connection, not the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import httptools

from triton_replay.capture.records import Headers, Request, Response


class Sink(Protocol):
    """Where records go."""

    def put(self, record: Request | Response) -> None:
        """Take a record; must not wait."""

    def count(self, reason: str) -> None:
        """Count something that is not recorded."""


@dataclass(eq=False)
class _Message:
    """A request or response of which some has come."""

    limit: int
    at: int
    number: int = 0
    method: str = ""
    target: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    status: int = 0
    parts: list[tuple[int, int]] = field(default_factory=list)

    def add_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self.size <= self.limit:
            self.body += data
        elif self.body:
            self.body = bytearray()  # it will not be kept, so it need not be held

    def all_headers(self) -> Headers:
        return tuple(self.headers)

    @property
    def until_close(self) -> bool:
        """Whether only the end of the connection ends this response."""
        names = {name.lower() for name, _ in self.headers}
        return self.status > 0 and not names & {"content-length", "transfer-encoding"}


class HttpTap:
    """One connection.

    clock: gives nanoseconds since the recording began.
    max_body: bytes of a body that are kept; of a longer one only its size.
    """

    def __init__(
        self,
        connection: int,
        numbers: Iterator[int],
        clock: Callable[[], int],
        sink: Sink,
        max_body: int,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._waiting: deque[_Message] = deque()
        """Requests that are not answered yet, in their order; the last may still be coming."""
        self._requests = _Requests(self, connection, numbers, clock, sink, max_body)
        self._responses = _Responses(self, clock, sink, max_body)
        self._readable = True

    def sent(self, data: bytes) -> None:
        """Bytes that the client has sent."""
        self._feed(self._requests.parser, data)

    def answered(self, data: bytes) -> None:
        """Bytes that the server has sent."""
        self._feed(self._responses.parser, data)

    def closed(self, by: str) -> None:
        """`client` or `server` has closed the connection: what is under way is over."""
        if self._readable:
            self._readable = False
            self._requests.cut_off()
            self._responses.cut_off(by)

    def expect(self, request: _Message) -> None:
        """A request has begun."""
        self._waiting.append(request)

    def next_waiting(self) -> _Message | None:
        """The request that the next response answers, which waits no longer."""
        return self._waiting.popleft() if self._waiting else None

    def _feed(
        self, parser: httptools.HttpRequestParser | httptools.HttpResponseParser, data: bytes
    ) -> None:
        if not self._readable:
            return
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._readable = False
            self._sink.count("connections that could not be read as HTTP/1")


class _Requests:
    """Callbacks of httptools for what the client sends."""

    def __init__(
        self,
        tap: HttpTap,
        connection: int,
        numbers: Iterator[int],
        clock: Callable[[], int],
        sink: Sink,
        limit: int,
    ) -> None:
        self._tap = tap
        self._connection = connection
        self._numbers = numbers
        self._clock = clock
        self._sink = sink
        self._limit = limit
        self._message: _Message | None = None
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self._message = _Message(self._limit, self._clock(), next(self._numbers))
        self._tap.expect(self._message)

    def on_url(self, url: bytes) -> None:
        assert self._message is not None
        self._message.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._message is not None
        self._message.add_header(name, value)

    def on_headers_complete(self) -> None:
        assert self._message is not None
        self._message.method = self.parser.get_method().decode("latin-1")
        if self._message.method == "HEAD":
            # Its response has the length of a body that does not come.
            raise httptools.HttpParserError("HEAD")

    def on_body(self, data: bytes) -> None:
        assert self._message is not None
        self._message.add(data)

    def on_message_complete(self) -> None:
        message, self._message = self._message, None
        assert message is not None
        self._sink.put(
            Request(
                number=message.number,
                connection=self._connection,
                at=message.at,
                end=self._clock(),
                method=message.method,
                target=message.target.decode("latin-1"),
                headers=message.all_headers(),
                body_size=message.size,
                body=message.body,
            )
        )

    def cut_off(self) -> None:
        """The connection has ended."""
        if self._message is not None:
            self._sink.count("requests that did not come whole")


class _Responses:
    """Callbacks of httptools for what the server answers."""

    def __init__(self, tap: HttpTap, clock: Callable[[], int], sink: Sink, limit: int) -> None:
        self._tap = tap
        self._clock = clock
        self._sink = sink
        self._limit = limit
        self._message: _Message | None = None
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self._message = _Message(self._limit, self._clock())

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._message is not None
        self._message.add_header(name, value)

    def on_headers_complete(self) -> None:
        assert self._message is not None
        self._message.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        assert self._message is not None
        self._message.add(data)

    def on_chunk_complete(self) -> None:
        message = self._message
        assert message is not None
        if message.size and (not message.parts or message.parts[-1][1] != message.size):
            message.parts.append((self._clock(), message.size))

    def on_message_complete(self) -> None:
        message, self._message = self._message, None
        assert message is not None
        if message.status < 200:
            return  # 100 Continue: the response is still to come
        request = self._tap.next_waiting()
        if request is not None:
            self._put(message, request, "complete")

    def cut_off(self, by: str) -> None:
        """The connection has ended: what was waited for is recorded as never answered."""
        message, self._message = self._message, None
        if message is not None:
            request = self._tap.next_waiting()
            if request is not None:
                whole = by == "server" and message.until_close
                self._put(message, request, "complete" if whole else by)
        while (request := self._tap.next_waiting()) is not None:
            self._put(_Message(self._limit, self._clock()), request, by)

    def _put(self, message: _Message, request: _Message, ended: str) -> None:
        self._sink.put(
            Response(
                number=request.number,
                at=message.at,
                end=self._clock(),
                status=message.status,
                headers=message.all_headers(),
                body_size=message.size,
                body=message.body,
                ended=ended,
                parts=tuple(message.parts) if len(message.parts) > 1 else (),
            )
        )
