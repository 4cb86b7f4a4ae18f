"""What a client did, as the connection tells it. Streams are named by their numbers."""

from __future__ import annotations

from typing import NamedTuple

from reference_server.frontends.grpc.http2.header_blocks import Fields


class RequestBegan(NamedTuple):
    """A stream was opened by these header fields; `ended` if nothing follows them."""

    stream_id: int
    fields: Fields
    ended: bool


class DataCame(NamedTuple):
    """A piece of a request's body, valid until more is received; `ended` if it is the last."""

    stream_id: int
    data: memoryview
    ended: bool


class RequestEnded(NamedTuple):
    """The request ended with trailers, which nobody needs."""

    stream_id: int


class StreamGone(NamedTuple):
    """The client gave the stream up, or did what ends it; it is gone already."""

    stream_id: int


class PingCame(NamedTuple):
    """The client pinged, and is answered already."""


class PongCame(NamedTuple):
    """The client answered the ping with this payload."""

    payload: bytes


class ConnectionFailed(NamedTuple):
    """The client did what ends the connection, and was told; nothing more is read."""

    reason: str


Event = RequestBegan | DataCame | RequestEnded | StreamGone | PingCame | PongCame | ConnectionFailed
