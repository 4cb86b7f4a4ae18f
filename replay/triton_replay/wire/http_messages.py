"""Incremental parsing of HTTP/1 responses, with the times of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from triton_replay.wire.bodies import Headers


@dataclass(eq=False)
class Message:
    """A request or response, possibly incomplete.

    Args:
        limit: Largest body in bytes that is kept; of a larger body only the size is kept.
        at: Time of the first byte.
    """

    limit: int
    at: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    size: int = 0
    status: int = 0
    parts: list[tuple[int, int]] = field(default_factory=list)
    """Time and end position in the body, for each chunk."""

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        self.size += len(data)
        if self.size <= self.limit:
            self.body += data
        elif self.body:
            self.body = bytearray()  # too large to be kept

    def all_headers(self) -> Headers:
        """Return the headers in order."""
        return tuple(self.headers)

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """`parts` if it has several entries, otherwise empty."""
        return tuple(self.parts) if len(self.parts) > 1 else ()

    @property
    def until_close(self) -> bool:
        """True if the body ends with the connection."""
        names = {name.lower() for name, _ in self.headers}
        return self.status > 0 and not names & {"content-length", "transfer-encoding"}


class ResponseReader:
    """Parses the responses of one connection. Skips interim responses.

    Args:
        clock: Returns the current time in nanoseconds.
        limit: Largest body in bytes that is kept.
        done: Called with each complete response.
    """

    def __init__(
        self, clock: Callable[[], int], limit: int, done: Callable[[Message], None]
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._done = done
        self._message: Message | None = None
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse bytes from the server.

        Raises:
            httptools.HttpParserError: The bytes are not HTTP.
        """
        self._parser.feed_data(data)

    def cut_off(self) -> Message | None:
        """End the input; return the incomplete response, or None."""
        message, self._message = self._message, None
        return message

    @property
    def keeps_open(self) -> bool:
        """True if the connection stays open after this response."""
        return bool(self._parser.should_keep_alive())

    def on_message_begin(self) -> None:
        self._message = Message(self._limit, self._clock())

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._message is not None
        self._message.add_header(name, value)

    def on_headers_complete(self) -> None:
        assert self._message is not None
        self._message.status = self._parser.get_status_code()

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
        if message.status >= 200:
            self._done(message)
