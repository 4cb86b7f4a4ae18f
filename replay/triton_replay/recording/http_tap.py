"""The HTTP/1 tap: records the requests and responses of one proxied connection.

The tap does not change or delay the traffic. Bytes that it cannot parse, such as an upgrade, end
the recording of the connection, but not the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import httptools

from triton_replay.capture.records import Request, Response, Traffic
from triton_replay.wire.http_messages import Message, ResponseReader


class Sink(Protocol):
    """The destination of records."""

    def put(self, record: Traffic) -> None:
        """Accept a record without waiting."""

    def count(self, reason: str) -> None:
        """Count traffic that is not recorded."""


@dataclass(eq=False)
class ConnectionTap:
    """The recording of one connection.

    Args:
        connection: Number of the connection.
        numbers: Yields the numbers of requests.
        clock: Returns nanoseconds since the start of the recording.
        sink: Receives the records.
        max_body: Largest body in bytes that is kept; of a larger body only the size is kept.
    """

    connection: int
    numbers: Iterator[int]
    clock: Callable[[], int]
    sink: Sink
    max_body: int

    def __post_init__(self) -> None:
        self._readable = True

    def _unreadable(self, protocol: str) -> None:
        """Stop reading, because the bytes are not valid in the protocol."""
        self._readable = False
        self.sink.count(f"connections that could not be read as {protocol}")


class HttpTap(ConnectionTap):
    """Records one connection over HTTP/1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unanswered: deque[int] = deque()
        """Numbers of requests without response, in order. The last one may be incomplete."""
        self._request: Message | None = None
        self._target = b""
        self._requests = httptools.HttpRequestParser(self)
        self._responses = ResponseReader(self.clock, self.max_body, self._put_response)

    def sent(self, data: bytes) -> None:
        """Read bytes from the client."""
        self._read(self._requests.feed_data, data)

    def answered(self, data: bytes) -> None:
        """Read bytes from the server."""
        self._read(self._responses.feed, data)

    def closed(self, by: str) -> None:
        """End all exchanges after "client" or "server" closed the connection."""
        if not self._readable:
            return
        self._readable = False
        if self._request is not None:
            self.sink.count("incomplete requests")
        message = self._responses.cut_off()
        if message is not None:
            whole = by == "server" and message.until_close
            self._put_response(message, "complete" if whole else by)
        while self._unanswered:
            self._put_response(Message(self.max_body, self.clock()), by)

    def _read(self, feed: Callable[[bytes], None], data: bytes) -> None:
        if not self._readable:
            return
        try:
            feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._unreadable("HTTP/1")

    def _put_response(self, message: Message, ended: str = "complete") -> None:
        if not self._unanswered:
            return  # a response without a request
        self.sink.put(Response.of(self._unanswered.popleft(), message, self.clock(), ended))

    # Callbacks of httptools, for requests.

    def on_message_begin(self) -> None:
        self._request = Message(self.max_body, self.clock())
        self._target = b""
        self._unanswered.append(next(self.numbers))

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._request is not None
        self._request.add_header(name, value)

    def on_headers_complete(self) -> None:
        if self._requests.get_method() == b"HEAD":
            # The response to HEAD has a Content-Length, but no body.
            raise httptools.HttpParserError("HEAD")

    def on_body(self, data: bytes) -> None:
        assert self._request is not None
        self._request.add(data)

    def on_message_complete(self) -> None:
        message, self._request = self._request, None
        assert message is not None
        method = self._requests.get_method().decode("latin-1")
        route = method, self._target.decode("latin-1")
        number = self._unanswered[-1]
        self.sink.put(Request.of(number, self.connection, message, self.clock(), *route))
