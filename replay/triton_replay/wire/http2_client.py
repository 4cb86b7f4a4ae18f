"""The client side of an HTTP/2 connection with concurrent gRPC calls, without I/O.

`GrpcConnection` of `grpc_connection` (epoll, for loads) and `GrpcChannel` of `grpc_channel`
(asyncio) add the socket and the handling of responses.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from hpack import Encoder, HPACKError

from triton_replay.addresses import Address
from triton_replay.wire import http2 as h2
from triton_replay.wire.bodies import Body, Headers, header
from triton_replay.wire.http2 import HeaderBlocks, NotHttp2, unpadded

GRANT: Final = 2**24
"""Received bytes after which a WINDOW_UPDATE is sent."""
REFUSED: Final = "the server refused the call before it processed it"
"""The failure of a call that may be sent again (RFC 9113, section 8.7)."""
_REFUSED_STREAM: Final = 7
_RESET: Final = "the server reset the call"
_PAIR: Final = struct.Struct(">HI")
_LAST_STREAM: Final = 2**30
"""Stream number after which a new connection is used, before the numbers are exhausted."""


class Call(Protocol):
    """The state of a call. The object may be reused for later calls."""

    stream: int
    """Number of the HTTP/2 stream; 0 while no call is in progress."""
    received: int
    """Bytes received on the stream since the last WINDOW_UPDATE."""


C = TypeVar("C", bound=Call)


class Http2Client(Generic[C]):
    """The HTTP/2 state of a connection and its concurrent calls.

    `_reset` prepares a new connection. `_out` collects the frames to send. Subclasses implement
    `_block`, `_data` and `_ended`, and may override the other hooks.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Initialize the state of a new connection."""
        self._encoder = Encoder()
        self._blocks = HeaderBlocks()
        self._calls: dict[int, C] = {}
        self._next_stream = 1
        self._has_settings = self._is_leaving = False
        self._rest = self._part = b""
        self._part_ends = False
        self._skip = 0
        """Number of upcoming bytes of a DATA frame that are discarded."""
        self._out: list[bytes | memoryview] = []
        self._received = 0
        self._window = self._stream_window = h2.DEFAULT_WINDOW
        self._windows: dict[int, int] = {}
        self._max_frame = h2.DEFAULT_FRAME
        self._max_calls = 2**31
        self._held: deque[tuple[int, memoryview, bool]] = deque()
        """Data that wait for SETTINGS or for a window: stream, data, and whether they end it."""

    # -- hooks

    def _block(self, call: C) -> bytes:
        """Return the header block of a call."""
        raise NotImplementedError

    def _discards(self, _: C) -> bool:
        """Return whether the content of the call's response is not needed."""
        return False

    def _data(self, call: C, data: bytes) -> None:
        """Process data of a response."""
        raise NotImplementedError

    def _head(self, call: C, headers: Headers) -> None:
        """Process headers that do not end the response."""

    def _ended(self, call: C, trailers: Headers, failure: str) -> None:
        """End a call, with trailers or with a failure."""
        raise NotImplementedError

    # -- sending

    def _begin(self, call: C) -> None:
        """Start a call. Its headers wait for the server's SETTINGS."""
        call.stream = stream = self._next_stream
        self._next_stream += 2
        if self._next_stream > _LAST_STREAM:
            self._is_leaving = True
        self._calls[stream] = call
        self._windows[stream] = self._stream_window
        call.received = 0
        if self._has_settings:
            self._send_headers(call)

    def _send_headers(self, call: C) -> None:
        block = self._block(call)
        most = self._max_frame
        kind = h2.HEADERS
        while len(block) > most:
            self._out.append(h2.frame(kind, 0, call.stream, block[:most]))
            block, kind = block[most:], h2.CONTINUATION
        self._out.append(h2.frame(kind, h2.END_HEADERS, call.stream, block))

    def _send_data(self, stream: int, data: Body, *, ends: bool) -> None:
        size = len(data)
        # Fast path: the data fit into one frame, and no other data wait.
        if self._has_settings and not self._held and size <= self._room(stream):
            self._spend(stream, size)
            flags = h2.END_STREAM if ends else 0
            self._out.append(h2.frame(h2.DATA, flags, stream, data))
        else:
            self._held.append((stream, memoryview(data), ends))

    def _send_held(self) -> None:
        held, self._held = self._held, deque()
        for stream, left, ends in held:
            while stream in self._calls:  # otherwise the call is over
                size = min(self._room(stream), len(left))
                if size <= 0 < len(left):
                    self._held.append((stream, left, ends))
                    break
                self._spend(stream, size)
                is_last = size == len(left)
                flags = h2.END_STREAM if ends and is_last else 0
                self._out += (h2.frame_head(h2.DATA, flags, stream, size), left[:size])
                if is_last:
                    break
                left = left[size:]

    def _room(self, stream: int) -> int:
        return min(self._window, self._windows[stream], self._max_frame)

    def _spend(self, stream: int, size: int) -> None:
        self._window -= size
        self._windows[stream] -= size

    # -- receiving

    def _receive(self, data: bytes) -> None:
        """Process bytes of the server. Raise NotHttp2 if the bytes are invalid."""
        try:
            self._frames(data)
        except (HPACKError, struct.error) as error:
            raise NotHttp2(str(error)) from error
        if self._received > GRANT:
            self._out.append(h2.window_update(0, self._received))
            self._received = 0

    def _frames(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = min(self._skip, len(data)), len(data)
        self._skip -= at
        unpack = h2.HEAD.unpack_from
        while end - at >= h2.HEAD.size:
            high, low, kind, flags, stream = unpack(data, at)
            begins = at + h2.HEAD.size
            size = high << 8 | low
            if size > h2.LARGEST_FRAME:
                raise NotHttp2(f"a frame of {size} bytes; the limit is {h2.LARGEST_FRAME}")
            if kind != h2.SETTINGS and not self._has_settings:
                raise NotHttp2("the first frame is not SETTINGS")
            ends = begins + size
            call = self._calls.get(stream) if kind == h2.DATA else None
            if kind == h2.DATA and (call is None or self._discards(call)):
                self._received += size
                at = min(ends, end)
                self._skip = ends - at
                continue
            if ends > end:
                break
            at = ends
            if call is not None:
                self._received += size
                self._data_came(call, flags, data[begins:ends])
            elif kind in (h2.HEADERS, h2.CONTINUATION):
                self._headers_came(kind, flags, stream, data[begins:ends])
            else:
                self._control(kind, flags, stream, data[begins:ends])
        self._rest = data[at:]

    def _data_came(self, call: C, flags: int, payload: bytes) -> None:
        call.received += len(payload)
        if call.received > GRANT:
            self._out.append(h2.window_update(call.stream, call.received))
            call.received = 0
        self._data(call, unpadded(payload, flags))
        if flags & h2.END_STREAM:
            self._end(call.stream)

    def _headers_came(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == h2.HEADERS:
            self._part, self._part_ends = b"", bool(flags & h2.END_STREAM)
            payload = unpadded(payload, flags)
            if flags & h2.PRIORITISED:
                payload = payload[5:]
        self._part += payload
        if not flags & h2.END_HEADERS:
            return
        headers = self._blocks.decode(self._part)
        if self._part_ends:
            self._end(stream, headers)
        elif stream in self._calls:
            self._head(self._calls[stream], headers)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == h2.SETTINGS and not flags & h2.ACK:
            for name, value in _PAIR.iter_unpack(payload):
                self._set(name, value)
            self._out.append(h2.frame(h2.SETTINGS, h2.ACK, 0))
            if not self._has_settings:
                self._has_settings = True
                for call in self._calls.values():
                    self._send_headers(call)
        elif kind == h2.PING and not flags & h2.ACK:
            self._out.append(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.WINDOW_UPDATE:
            size = int.from_bytes(payload, "big")
            if not stream:
                self._window += size
            elif stream in self._windows:
                self._windows[stream] += size
        elif kind == h2.RST_STREAM:
            code = int.from_bytes(payload, "big")
            refused = code == _REFUSED_STREAM
            self._fail((stream,), REFUSED if refused else f"{_RESET}: HTTP/2 error {code}")
        elif kind == h2.GOAWAY:
            self._is_leaving = True
            last = int.from_bytes(payload[:4], "big")
            late = [stream for stream in self._calls if stream > last]
            self._fail(late, "the server accepts no more calls on the connection")

    def _set(self, name: int, value: int) -> None:
        if name == h2.INITIAL_WINDOW:
            for stream in self._windows:
                self._windows[stream] += value - self._stream_window
            self._stream_window = value
        elif name == h2.MAX_FRAME:
            self._max_frame = value
        elif name == h2.MAX_CALLS:
            self._max_calls = value
        elif name == h2.TABLE_SIZE:
            self._encoder.header_table_size = min(value, self._encoder.header_table_size)

    def _end(self, stream: int, trailers: Headers = (), failure: str = "") -> None:
        call = self._calls.pop(stream, None)
        self._windows.pop(stream, None)
        if call is not None:
            call.stream = 0
            self._ended(call, trailers, failure)

    def _fail(self, streams: Iterable[int], reason: str) -> None:
        for stream in streams:
            self._end(stream, (), reason)


def call_fields(
    path: str, server: Address, metadata: Headers, scheme: str = "http"
) -> list[tuple[str, str]]:
    """Return the header fields of a call.

    Args:
        path: Path of the method.
        server: The server, for the field `:authority` unless the metadata have `host`.
        metadata: Metadata of the call; names are converted to lower case.
        scheme: Either "http" or "https".
    """
    return [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", header(metadata, "host") or str(server)),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "triton-replay"),
        *((name.lower(), value) for name, value in metadata if name.lower() != "host"),
    ]
