"""An HTTP/2 client that sends exactly the given bytes, valid or not.

    with RawConnection(server.grpc) as connection:
        connection.request(1, "/inference.GRPCInferenceService/ServerLive", message(b""))
        print(connection.answer(1))

It reads received frames one by one, and answers the server's pings and settings.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpack import Decoder, Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITISED = 0x4, 0x8, 0x20

Fields = Sequence[tuple[str, str]]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    """Return a SETTINGS frame; e.g. `_4=65535` sets setting number 4."""
    pairs = [struct.pack(">HI", int(name[1:]), value) for name, value in values.items()]
    return frame(SETTINGS, payload=b"".join(pairs))


def message(data: bytes, compressed: int = 0) -> bytes:
    """Return a gRPC message with its prefix."""
    return struct.pack(">BI", compressed, len(data)) + data


def head(path: str, *more: tuple[str, str], **changed: str | None) -> list[tuple[str, str]]:
    """Return a valid call's header fields; `te=None` removes a field, `method="GET"` changes it."""
    usual = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    for name, value in changed.items():
        found = next((key for key in usual if key.strip(":") == name.replace("_", "-")), name)
        if value is None:
            del usual[found]
        else:
            usual[found] = value
    return [*usual.items(), *more]


@dataclass
class Answer:
    """The received content of one stream."""

    blocks: list[list[tuple[str, str]]] = field(default_factory=list)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def trailers(self) -> dict[str, str]:
        """Return all fields of all header blocks."""
        return {name: value for block in self.blocks for name, value in block}


class ConnectionEnded(Exception):
    """The server closed the connection."""


class RawConnection:
    """One connection, over TCP or TLS; the preface and empty settings are sent at once."""

    def __init__(
        self,
        address: str,
        *,
        opening: bytes = PREFACE + frame(SETTINGS),
        seconds: float = 60,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.encoder, self._decoder = Encoder(), Decoder()
        self.answers: dict[int, Answer] = {}
        self.goaway: tuple[int, int, bytes] | None = None
        self.settings: dict[int, int] = {}
        self.pongs: list[bytes] = []
        self.windows: dict[int, int] = {}
        self._buffer = b""
        self.send(opening)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def headers(self, stream: int, fields: Fields, flags: int = END_HEADERS) -> bytes:
        """Return a HEADERS frame with these fields."""
        return frame(HEADERS, flags, stream, self.encoder.encode(fields))

    def request(self, stream: int, path: str, data: bytes, **changed: str | None) -> None:
        """Send a whole call with this body."""
        self.send(
            self.headers(stream, head(path, **changed)), frame(DATA, END_STREAM, stream, data)
        )

    def answer(self, stream: int) -> Answer:
        """Read until the stream ends. Raises ConnectionEnded."""
        found = self.answers.setdefault(stream, Answer())
        while not (found.ended or found.reset is not None):
            self.read()
        return found

    def until_goaway(self) -> tuple[int, int, bytes]:
        """Read until GOAWAY; return last stream, error code, debug data. Raises ConnectionEnded."""
        while self.goaway is None:
            self.read()
        return self.goaway

    def until_closed(self) -> None:
        """Read until the server closes the connection."""
        try:
            while True:
                self.read()
        except (ConnectionEnded, ConnectionResetError):
            return

    def pinged(self, data: bytes = b"12345678") -> None:
        """Send a ping and read until its answer: the server then has read all earlier frames."""
        self.send(frame(PING, 0, 0, data))
        while data not in self.pongs:
            self.read()
        self.pongs.remove(data)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionEnded
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _acknowledge(self, data: bytes) -> None:
        """Send data to a server that may have closed; its earlier frames can still be read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(data)

    def read(self) -> tuple[int, int, int, bytes]:
        """Read one frame, and update the state of its stream."""
        start = self._take(9)
        kind, flags, stream = struct.unpack(">BBI", start[3:])
        payload = self._take(int.from_bytes(start[:3], "big"))
        answer = self.answers.setdefault(stream, Answer()) if stream else None
        if answer is not None:
            if kind == HEADERS:
                answer.blocks.append([(str(n), str(v)) for n, v in self._decoder.decode(payload)])
            elif kind == DATA:
                answer.data += payload
            elif kind == RST_STREAM:
                answer.reset = int.from_bytes(payload, "big")
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                answer.ended = True
        if kind == SETTINGS and not flags & ACK:
            self.settings.update(struct.iter_unpack(">HI", payload))
            self._acknowledge(frame(SETTINGS, ACK))
        elif kind == PING and not flags & ACK:
            self._acknowledge(frame(PING, ACK, 0, payload))
        elif kind == PING:
            self.pongs.append(payload)
        elif kind == GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            self.goaway = (last, code, payload[8:])
        elif kind == WINDOW_UPDATE:
            self.windows[stream] = self.windows.get(stream, 0) + int.from_bytes(payload, "big")
        return kind, flags, stream, payload
