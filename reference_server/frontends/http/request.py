"""One HTTP request: the object for handlers, the body during its receipt, and reply headers.

Replies have the header lines of Triton's HTTP library, in the same order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from reference_server.core.backlog import UNCOUNTED, Backlog, Charge, Intake
from reference_server.core.cpp import leading_integer
from reference_server.core.request import Cancellation
from reference_server.frontends.http import status_codes

Part = bytes | memoryview
Header = tuple[bytes, bytes]

#: Alignment in bytes, for NumPy, of the tensor data in a body for which `Body.place` is called.
_ALIGNMENT = 64
#: Consecutive pieces of a body below this size, in bytes, are joined.
_SMALL_PIECE = 1 << 12


class Replies(Protocol):
    """The connection of a request: writes replies, and continues with the next request."""

    @property
    def is_local(self) -> bool:
        """True if the client reached the server at a loopback address."""

    def reply(
        self,
        request: Request,
        status: bytes,
        parts: Sequence[Part],
        headers: Sequence[Header],
        content_type: bytes | None,
    ) -> None:
        """Write the reply to the current request."""

    def begin_chunks(
        self, request: Request, status: bytes, content_type: bytes, headers: Sequence[Header]
    ) -> None:
        """Write the headers of a chunked reply to the current request."""

    def send_chunk(self, data: bytes) -> None:
        """Write one chunk of the body."""

    def end_chunks(self, request: Request) -> None:
        """Write the end of the body."""


class RequestHead(NamedTuple):
    """The head of a request, and `notes`: values that handlers have derived from it.

    Requests with equal heads, byte for byte, share one object. See `Request` for the fields.
    """

    url: bytes
    method: str
    version: str
    keep_alive: bool
    headers: dict[bytes, bytes]
    fields: list[Header]
    notes: dict[object, Any]


class Request:
    """One HTTP request, with the methods that answer it. Used on the event loop's thread.

    Call either `reply` exactly once, or `begin_chunks`, `send_chunk` any number of times, and
    `end_chunks`. `cancellation`, if set, is cancelled when the client disconnects. `backlog`, if
    set, receives the number of chunk bytes that the client has not read.
    """

    __slots__ = (
        "_connection",
        "backlog",
        "body",
        "cancellation",
        "dropped",
        "fields",
        "headers",
        "keep_alive",
        "method",
        "notes",
        "url",
        "version",
    )

    def __init__(self, connection: Replies, head: RequestHead | None = None) -> None:
        self._connection = connection
        self.url: bytes
        self.method: str
        self.version: str
        self.keep_alive: bool
        self.headers: dict[bytes, bytes]  # the first value by lower-case name
        self.fields: list[Header]  # all headers, as received
        self.notes: dict[object, Any]
        (
            self.url,
            self.method,
            self.version,
            self.keep_alive,
            self.headers,
            self.fields,
            self.notes,
        ) = head or RequestHead(b"", "", "1.1", True, {}, [], {})
        self.body: memoryview = memoryview(b"")
        self.dropped = 0  # the size of a body that was too large to be kept
        self.cancellation: Cancellation | None = None
        self.backlog: Backlog | None = None

    @property
    def head(self) -> RequestHead:
        """The request without its body."""
        return RequestHead(
            *(self.url, self.method, self.version, self.keep_alive),
            *(self.headers, self.fields, self.notes),
        )

    @property
    def is_local(self) -> bool:
        """True if the client reached the server at a loopback address."""
        return self._connection.is_local

    @property
    def size(self) -> int:
        """The size of the body in bytes, even if the body was not kept."""
        return self.dropped or len(self.body)

    def header(self, name: bytes) -> str | None:
        """Return the value of a header by its lower-case name."""
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
        """Send the reply; `headers` are written between type and length.

        Without a `content_type` the type is plain text and is written last, as by Triton's HTTP
        library.
        """
        self._connection.reply(self, status, parts, headers, content_type)

    def begin_chunks(
        self, status: bytes, content_type: bytes, headers: Sequence[Header] = ()
    ) -> None:
        """Start a reply of unknown length."""
        self._connection.begin_chunks(self, status, content_type, headers)

    def send_chunk(self, data: bytes) -> None:
        """Send a piece of the body; it must not be empty."""
        self._connection.send_chunk(data)

    def end_chunks(self) -> None:
        """End the body."""
        self._connection.end_chunks(self)

    def reply_error(self, status: bytes, message: str, *, as_json: bool) -> None:
        """Send an error body. As in Triton, its type is JSON or plain text."""
        self.reply(
            status,
            [status_codes.body(message)],
            content_type=b"application/json" if as_json else None,
        )


class RequestRejected(Exception):
    """A request must be answered with status 400 and this exception's text."""


class Body:
    """The received part of a body.

    `place` allocates memory for the whole body; later bytes are received in place, directly into
    this memory. Without `place`, the received pieces are kept in a list.

    Args:
        intake: the memory budget that a long body is charged to.
        max_input: the limit in bytes for a body of JSON or of one raw tensor; None is no limit.
    """

    __slots__ = ("_buffer", "_charge", "_intake", "_max_input", "_pieces", "chunks", "received")

    def __init__(self, intake: Intake, max_input: int | None = None) -> None:
        self._max_input = math.inf if max_input is None else max_input
        self.received = 0  # bytes
        self.chunks = 0  # received chunk headers (transfer-encoding: chunked)
        self._intake = intake
        self._charge: Charge | None = None  # for a long body
        self._pieces: list[bytes | bytearray] = []
        self._buffer: memoryview | None = None  # for a body received in place

    @property
    def rest(self) -> memoryview | None:
        """The memory for the missing bytes of a body that is received in place, else None."""
        return None if self._buffer is None else self._buffer[self.received :]

    @property
    def missing(self) -> int:
        """The number of missing bytes of a body that is received in place, else 0."""
        return 0 if self._buffer is None else len(self._buffer) - self.received

    @property
    def is_full(self) -> bool:
        """True if the body is received in place and complete."""
        return self._buffer is not None and self.received == len(self._buffer)

    def exceeds(self, headers: Mapping[bytes, bytes], size: int | None = None) -> bool:
        """Return True if `size` bytes (None: the received bytes) are too many to be kept."""
        size = self.received if size is None else size
        return size > self._max_input and not _may_be_larger(headers, self._max_input)

    def receive(self, piece: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Append a piece. If `exceeds` is then True, keep no pieces and only count their bytes.

        Raises:
            RequestRejected: the memory budget is exhausted.
        """
        if self.exceeds(headers, self.received + len(piece)):
            self.received += len(piece)
            self._pieces.clear()
            self._charge = None
        else:
            self.add(piece)

    def add(self, piece: bytes) -> None:
        """Append a piece. Raises RequestRejected if the memory budget is exhausted."""
        pieces = self._pieces
        last = pieces[-1] if pieces else b""
        if len(piece) >= _SMALL_PIECE or not pieces:
            pieces.append(piece)
        elif isinstance(last, bytearray) and len(last) < _SMALL_PIECE:
            last += piece  # otherwise each byte of a slow client would cost an object
        else:
            pieces.append(bytearray(piece))
        self.received += len(piece)
        if self._charge is not None:
            self._count(self._charge, len(piece))
        elif self.received > UNCOUNTED:
            self._charge = self._intake.charge()
            self._count(self._charge, self.received)

    def place(self, length: int, data_offset: int) -> None:
        """Allocate memory for the whole body, into which the missing bytes are received.

        Args:
            length: the size of the body in bytes.
            data_offset: the offset of the byte that is aligned for NumPy.

        Raises:
            RequestRejected: the memory cannot be allocated, or the memory budget is exhausted.
        """
        try:
            memory = np.empty(length + _ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # ValueError: more than the address space
            text = f"a request body of {length} bytes does not fit the server's memory"
            raise RequestRejected(text) from None
        address = memory.__array_interface__["data"][0]
        start = -(address + data_offset) % _ALIGNMENT
        whole = memory[start : start + length]
        if self._charge is None and length > UNCOUNTED:
            self._charge = self._intake.charge()
            self._count(self._charge, self.received)
        buffer = whole.data if self._charge is None else self._charge.hold(whole)
        filled = 0
        for piece in self._pieces:
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        self._pieces = []
        self._buffer = buffer

    def filled(self, size: int) -> None:
        """Count bytes received into `rest`. Raises RequestRejected beyond the memory budget."""
        self.received += size
        if self._charge is not None:
            self._count(self._charge, size)

    def whole(self) -> memoryview:
        """Return the received bytes, and drop all references to them."""
        data: bytes | memoryview
        if self._buffer is not None:
            data = self._buffer
        else:
            pieces = self._pieces
            data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
            if self._charge is not None:
                data = self._charge.hold(data)
        self._pieces, self._buffer, self._charge = [], None, None
        return memoryview(data)

    def _count(self, charge: Charge, size: int) -> None:
        if not charge.grow(size):
            raise RequestRejected(self._intake.refusal(self.received))


def _may_be_larger(headers: Mapping[bytes, bytes], limit: float) -> bool:
    """Return True if a body of more than `limit` bytes may be valid: binary data, or compressed."""
    if headers.get(b"content-encoding", b"identity") != b"identity":
        return True
    text = headers.get(b"inference-header-content-length", b"0").decode("latin-1")
    length = leading_integer(text) or 0  # 0: all of the body is the tensor
    return length != 0 and length <= limit


# Most replies have one of a few heads.
@functools.lru_cache(maxsize=1024)
def reply_headers(
    version: str,
    keep_alive: bool,
    status: bytes,
    content_type: bytes | None,
    headers: tuple[Header, ...],
    length: int,
) -> bytes:
    """Return the status line and headers of a reply with `length` bytes.

    `headers` are written between type and length. Without a `content_type` the type is plain text
    and is written last.
    """
    old = version == "1.0"
    lines = [b"HTTP/%b %b" % (version.encode(), status)]
    if content_type is not None:
        lines.append(b"Content-Type: " + content_type)
    lines.extend(b"%b: %b" % header for header in headers)
    if length:
        lines.append(b"Content-Length: %d" % length)
    if keep_alive is old:  # only the version's non-default is sent (RFC 9112, section 9.3)
        lines.append(b"Connection: keep-alive" if old else b"Connection: close")
    if not length and (keep_alive or not old):
        lines.append(b"Content-Length: 0")
    if content_type is None:
        lines.append(b"Content-Type: text/plain")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def chunked_reply_headers(
    version: str,
    keep_alive: bool,
    status: bytes,
    content_type: bytes,
    headers: Sequence[Header] = (),
) -> bytes:
    """Return the status line and headers of a chunked reply.

    Replies to HTTP/1.0 requests are chunked too, as in Triton.
    """
    old = version == "1.0"
    lines = [
        b"HTTP/%b %b" % (version.encode(), status),
        b"Content-Type: " + content_type,
        *(b"%b: %b" % header for header in headers),
        b"Transfer-Encoding: chunked",
    ]
    if keep_alive is old:
        lines.append(b"Connection: keep-alive" if old else b"Connection: close")
    return b"\r\n".join([*lines, b"", b""])
