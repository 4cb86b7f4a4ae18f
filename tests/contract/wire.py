"""An HTTP client that sends exactly the given bytes, and keeps all received bytes.

Ordinary HTTP clients correct requests and normalize responses, which would hide differences.
`exchange` opens a connection, sends the bytes of a case, and returns the replies and whether the
connection stayed open.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

# The time limit in seconds, for the slowest model of the suite on a loaded machine.
ANSWER_SECONDS = 60
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Reply:
    """One HTTP reply as on the wire, except that the chunks of a body are joined."""

    status_line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.status_line.split(" ", 2)[1])

    def header(self, name: str) -> str | None:
        """Return the value of a header, independent of upper and lower case."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def without_header(self, *names: str) -> Reply:
        kept = tuple((k, v) for k, v in self.headers if k.lower() not in names)
        return replace(self, headers=kept)

    def __str__(self) -> str:
        head = [self.status_line, *(f"{name}: {value}" for name, value in self.headers)]
        return "\n".join([*head, "", self.body.decode("utf-8", "backslashreplace")])


@dataclass(frozen=True)
class Exchange:
    """The outcome of one connection: the replies in order, and whether it stayed open."""

    replies: tuple[Reply, ...]
    stays_open: bool

    def __str__(self) -> str:
        end = "(connection stays open)" if self.stays_open else "(connection closed)"
        return "\n\n".join([*map(str, self.replies), end])


class ConnectionEnded(Exception):
    """The server closed the connection before a reply was complete."""


def exchange(address: str, request: bytes | Sequence[bytes], *, replies: int = 1) -> Exchange:
    """Send a request, in one piece or in several, and read up to that many replies.

    A connection that ends early is part of the result. A server that does not answer raises
    TimeoutError.
    """
    pieces = [request] if isinstance(request, bytes) else request
    received = []
    with connect(address) as connection, connection.makefile("rb") as stream:
        try:
            for piece in pieces:
                connection.sendall(piece)
            while len(received) < replies:
                received.append(read_reply(stream))
            connection.sendall(LIVE)
            stays_open = read_reply(stream).status == 200
        except (ConnectionEnded, ConnectionResetError, BrokenPipeError):
            stays_open = False
    return Exchange(tuple(received), stays_open)


def connect(address: str) -> socket.socket:
    """Open a connection to `HOST:PORT` or `unix:PATH`; each read and write has a time limit."""
    if address.startswith("unix:"):
        local = socket.socket(socket.AF_UNIX)
        local.settimeout(ANSWER_SECONDS)
        local.connect(address.removeprefix("unix:"))
        return local
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_reply(stream) -> Reply:
    """Read one reply; an interim reply (100 Continue) counts as a separate reply."""
    status_line = _line(stream)
    headers = []
    while line := _line(stream):
        name, _, value = line.partition(": ")
        headers.append((name, value))
    reply = Reply(status_line, tuple(headers), b"")
    if 100 <= reply.status < 200:
        return reply
    if reply.header("Transfer-Encoding") == "chunked":
        return replace(reply, body=_chunks(stream))
    length = reply.header("Content-Length")
    if length is None:
        return replace(reply, body=stream.read())
    return replace(reply, body=_exactly(stream, int(length)))


def _line(stream) -> str:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionEnded
    return line[:-2].decode("latin-1")


def _exactly(stream, size: int) -> bytes:
    body = stream.read(size)
    if len(body) < size:
        raise ConnectionEnded
    return body


def _chunks(stream) -> bytes:
    body = b""
    while size := int(_line(stream), 16):
        body += _exactly(stream, size)
        _exactly(stream, 2)
    with contextlib.suppress(ConnectionEnded):
        _line(stream)
    return body


def said(address: str, method: str, path: str, document: object = None) -> str:
    """Send a request with this JSON; return the status and the body of the reply."""
    body = b"" if document is None else json.dumps(document).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    (reply,) = exchange(address, head.encode() + body).replies
    return f"{reply.status} {reply.body.decode()}"


def index(address: str) -> dict[str, dict[str, str]]:
    """Return the rows of the repository's index by model."""
    rows = json.loads(said(address, "POST", "/v2/repository/index").partition(" ")[2])
    return {row["name"]: row for row in rows}
