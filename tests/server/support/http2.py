"""The client's side of HTTP/2 over a connection without a network."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hpack import Encoder
from support.http2 import ACK, END_HEADERS, HEADERS, PREFACE, SETTINGS, frame

from reference_server.frontends.grpc.http2.connection import Http2Connection
from reference_server.frontends.grpc.http2.frames import Limits
from reference_server.frontends.grpc.http2.receiving import Event

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/u"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
GREETING = PREFACE + frame(SETTINGS)


class SentFrame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frames_in(data: bytes) -> list[SentFrame]:
    """The frames that these bytes are; there must be nothing behind them."""
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", data[3:9])
        assert len(data) >= 9 + length, "half a frame was sent"
        found.append(SentFrame(kind, flags, stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return found


class Peer:
    """A client that has said hello, and the connection that it talks to.

    `now_s` is the time; `sent` keeps all frames of the server but those of the greeting.
    """

    def __init__(self, limits: Limits | None = None, greeting: bytes = GREETING) -> None:
        self.connection = Http2Connection(limits)
        self.encoder = Encoder()
        self.now_s = 0.0
        self.sent: list[SentFrame] = []
        self.events: list[Event] = []
        if greeting:
            self.say(greeting)
            assert [one.kind for one in self.take()][-1:] == [SETTINGS]
            self.sent.clear()

    def say(self, *data: bytes) -> list[Event]:
        """Send bytes; what the connection makes of them."""
        events = self.connection.receive(memoryview(b"".join(data)), self.now_s)
        self.events += events
        return events

    def headers(self, stream: int, fields=REQUEST, flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream, self.encoder.encode(fields))

    def take(self) -> list[SentFrame]:
        """Return the frames that the server has sent since the last call."""
        found = frames_in(b"".join(self.connection.take_output()))
        self.sent += found
        return found

    def took(self, kind: int) -> list[SentFrame]:
        """Return the new frames of this type, without acknowledgements of settings."""
        return [one for one in self.take() if one.kind == kind and one.flags != ACK]
