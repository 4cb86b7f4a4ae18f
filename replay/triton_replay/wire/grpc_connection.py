"""gRPC connections of a load: concurrent calls on one HTTP/2 connection.

A slot has one call in flight: a new call of ModelInfer for each request, or one call of
ModelStreamInfer for all requests. Responses are not kept.
"""

from __future__ import annotations

import select
import struct
import time
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from hpack import Encoder, HPACKError

from triton_replay.wire import http2 as h2
from triton_replay.wire.bodies import Headers
from triton_replay.wire.grpc_messages import FINAL, PREFIX, read_stream_answer
from triton_replay.wire.http2 import HeaderBlocks, NotHttp2, unpadded
from triton_replay.wire.slots import CLOSED, Connection, Slot
from triton_replay.wire.sockets import Resolved, Wire

_GRANT: Final = 2**24
"""Received bytes after which a WINDOW_UPDATE is sent."""
_ERROR: Final = b"\x0a"
"""First byte of a stream's response with an error: the tag of `error_message`."""
_PAIR: Final = struct.Struct(">HI")
_LAST_STREAM: Final = 2**30
"""A new connection replaces this one before its stream numbers are used up."""


class GrpcConnection(Wire):
    """A connection for concurrent calls of one method.

    Args:
        server: Address to connect to.
        poll: The loop's epoll object.
        by_number: The loop's connections by file descriptor.
        path: Path of the method.
        headers: Metadata of every call.
        slots: Number of concurrent calls.
        streaming: Whether the method has a stream of messages in each direction.
        many: Whether a request may have any number of responses; the last one must have the
            parameter `triton_final_response`.
    """

    def __init__(
        self,
        server: Resolved,
        poll: select.epoll,
        by_number: dict[int, Connection],
        path: str,
        headers: Headers,
        slots: int,
        *,
        streaming: bool = False,
        many: bool = False,
    ) -> None:
        super().__init__(server, poll, by_number)
        self.slots = [Slot(self) for _ in range(slots)]
        self._fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", str(server.address)),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "triton-replay"),
            *((name.lower(), value) for name, value in headers),
        ]
        self._streaming = streaming
        self._many = many
        self._later: list[tuple[Slot, bytes]] = []
        """Requests that wait for the next connection, after a GOAWAY."""
        self._reset()

    def _reset(self) -> None:
        """Initialize the state of a new connection."""
        self._encoder = Encoder()
        self._block = self._again = b""
        self._blocks = HeaderBlocks()
        self._calls: dict[int, Slot] = {}
        self._good: Headers | None = None
        self._next_stream = 1
        self._has_settings = self._is_leaving = False
        self._rest = self._part = b""
        self._part_ends = False
        self._skip = 0
        """Bytes of a DATA frame that are still to come and are not kept."""
        self._out: list[bytes | memoryview] = []
        self._received = 0
        self._window = self._stream_window = h2.DEFAULT_WINDOW
        self._windows: dict[int, int] = {}
        self._max_frame = h2.DEFAULT_FRAME
        self._held: deque[tuple[int, memoryview]] = deque()
        """Messages that wait for the server's SETTINGS or for its windows."""

    # -- sending

    def send(self, slot: Slot, request: bytes) -> None:
        if self._is_leaving and self._calls:
            self._later.append((slot, request))
            return
        if self._is_leaving or not self.is_open:
            self._connect()
        slot.failure, slot.pending = "", True
        slot.body.clear()
        if self._streaming:
            slot.times = array("q")
        if not slot.stream:
            self._begin(slot)
        stream = slot.stream
        size = len(request)
        # Fast path: the message fits one frame, and no other message waits.
        if self._has_settings and not self._held and size <= self._room(stream):
            self._spend(stream, size)
            flags = 0 if self._streaming else h2.END_STREAM
            self._out.append(h2.frame(h2.DATA, flags, stream, request))
        else:
            self._held.append((stream, memoryview(request)))

    def flush(self) -> None:
        if self._later and not self._calls:
            later, self._later = self._later, []
            for slot, request in later:
                self.send(slot, request)
        if self._held and self._has_settings:
            self._send_held()
        if self._out:
            self.write(self._out)
            self._out.clear()

    def _connect(self) -> None:
        self.close()
        self._reset()
        self.open()
        self.write((h2.PREFACE + h2.opening(),))

    def _begin(self, slot: Slot) -> None:
        """Start a call. Its headers wait for the server's SETTINGS."""
        slot.stream = self._next_stream
        self._next_stream += 2
        if self._next_stream > _LAST_STREAM:
            self._is_leaving = True
        self._calls[slot.stream] = slot
        self._windows[slot.stream] = self._stream_window
        slot.received = 0
        if self._has_settings:
            self._out.append(self._headers(slot.stream))

    def _headers(self, stream: int) -> bytes:
        if not self._block:
            self._block = self._encoder.encode(self._fields)
            # From the second call on, the block is shorter: it refers to HPACK's dynamic table.
            self._again = self._encoder.encode(self._fields)
            block = self._block
        else:
            block = self._again
        return h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block)

    def _room(self, stream: int) -> int:
        return min(self._window, self._windows[stream], self._max_frame)

    def _spend(self, stream: int, size: int) -> None:
        self._window -= size
        self._windows[stream] -= size

    def _send_held(self) -> None:
        held, self._held = self._held, deque()
        while held:
            stream, left = held.popleft()
            if stream not in self._calls:  # the call is over
                continue
            while len(left):
                size = min(self._room(stream), len(left))
                if size <= 0:
                    self._held.append((stream, left))
                    break
                self._spend(stream, size)
                ends = size == len(left) and not self._streaming
                flags = h2.END_STREAM if ends else 0
                self._out += (h2.frame_head(h2.DATA, flags, stream, size), left[:size])
                left = left[size:]

    # -- receiving

    def handle(self, mask: int, done: list[Slot]) -> None:
        data = self.read(mask)
        if data is None:
            return
        if not data:
            self._over(CLOSED, done)
            return
        if self._rest:
            data = self._rest + data
        at, end = min(self._skip, len(data)), len(data)
        self._skip -= at
        unpack = h2.HEAD.unpack_from
        try:
            while end - at >= h2.HEAD.size:
                high, low, kind, flags, stream = unpack(data, at)
                begins = at + h2.HEAD.size
                size = high << 8 | low
                if size > h2.LARGEST_FRAME:
                    raise NotHttp2(f"a frame of {size} bytes; the limit is {h2.LARGEST_FRAME}")
                if kind != h2.SETTINGS and not self._has_settings:
                    raise NotHttp2("the first frame is not SETTINGS")
                ends = begins + size
                slot = self._calls.get(stream) if kind == h2.DATA else None
                if kind == h2.DATA and (slot is None or self._discards(slot)):
                    self._received += size
                    at = min(ends, end)
                    self._skip = ends - at
                    continue
                if ends > end:
                    break
                at = ends
                if slot is not None:
                    self._received += size
                    if self._streaming:
                        self._data(slot, unpadded(data[begins:ends], flags), done)
                    else:
                        slot.body += unpadded(data[begins:ends], flags)
                elif kind in (h2.HEADERS, h2.CONTINUATION):
                    self._headers_came(kind, flags, stream, data[begins:ends], done)
                else:
                    self._control(kind, flags, stream, data[begins:ends], done)
        except (NotHttp2, HPACKError, struct.error) as error:
            self._over(f"the response is not gRPC: {error}", done)
            return
        self._rest = data[at:]
        if self._received > _GRANT:
            self._out.append(h2.window_update(0, self._received))
            self._received = 0

    def _discards(self, slot: Slot) -> bool:
        """Return whether the content of the call's response is not needed."""
        return not self._streaming and slot.reply is None

    def _data(self, slot: Slot, data: bytes, done: list[Slot]) -> None:
        """Process data of a stream of messages."""
        slot.received += len(data)
        if slot.received > _GRANT:
            self._out.append(h2.window_update(slot.stream, slot.received))
            slot.received = 0
        body = slot.body
        body += data
        while len(body) >= PREFIX:
            ends = PREFIX + int.from_bytes(body[1:PREFIX], "big")
            if len(body) < ends:
                return
            message = bytes(body[PREFIX:ends])
            del body[:ends]
            if slot.pending:
                self._message(slot, message, done)

    def _message(self, slot: Slot, message: bytes, done: list[Slot]) -> None:
        """Process one response of a stream."""
        now = time.perf_counter_ns()
        is_last = not self._many
        if message[:1] == _ERROR or (self._many and FINAL in message):
            failure, is_last, is_empty = read_stream_answer(message, is_last=is_last)
            if failure:
                slot.failure, is_last = failure, True
            if is_empty:
                now = 0
        if now and slot.times is not None:
            slot.first = slot.first or now
            slot.times.append(now)
        if is_last:
            slot.pending = False
            done.append(slot)

    def _headers_came(
        self, kind: int, flags: int, stream: int, payload: bytes, done: list[Slot]
    ) -> None:
        if kind == h2.HEADERS:
            self._part, self._part_ends = b"", bool(flags & h2.END_STREAM)
            payload = unpadded(payload, flags)
            if flags & h2.PRIORITISED:
                payload = payload[5:]
        self._part += payload
        if not flags & h2.END_HEADERS:
            return
        headers = self._blocks.decode(self._part)
        if not self._part_ends:
            return
        slot = self._calls.pop(stream, None)
        self._windows.pop(stream, None)
        if slot is None:
            return
        slot.stream = 0
        if headers is not self._good:
            found = dict(headers)
            if found.get("grpc-status") == "0":
                self._good = headers
            else:
                status = found.get("grpc-status", found.get(":status", "no status"))
                text = unquote(found.get("grpc-message", ""))
                slot.failure = f"gRPC status {status}: {text}"
        if self._streaming and not slot.failure:
            slot.failure = "the server ended the stream"
        self._end(slot, done)

    def _control(
        self, kind: int, flags: int, stream: int, payload: bytes, done: list[Slot]
    ) -> None:
        if kind == h2.SETTINGS and not flags & h2.ACK:
            for name, value in _PAIR.iter_unpack(payload):
                self._set(name, value)
            self._out.append(h2.frame(h2.SETTINGS, h2.ACK, 0))
            if not self._has_settings:
                self._has_settings = True
                self._out += [self._headers(stream) for stream in self._calls]
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
            self._fail_calls((stream,), f"the server reset the call: HTTP/2 error {code}", done)
        elif kind == h2.GOAWAY:
            self._is_leaving = True
            last = int.from_bytes(payload[:4], "big")
            late = [stream for stream in self._calls if stream > last]
            self._fail_calls(late, "the server accepts no more calls on the connection", done)

    def _set(self, name: int, value: int) -> None:
        if name == h2.INITIAL_WINDOW:
            for stream in self._windows:
                self._windows[stream] += value - self._stream_window
            self._stream_window = value
        elif name == h2.MAX_FRAME:
            self._max_frame = value
        elif name == h2.TABLE_SIZE:
            self._encoder.header_table_size = min(value, self._encoder.header_table_size)
            self._block = b""

    def _fail_calls(self, streams: Iterable[int], reason: str, done: list[Slot]) -> None:
        for stream in streams:
            slot = self._calls.pop(stream, None)
            self._windows.pop(stream, None)
            if slot is not None:
                slot.stream = 0
                slot.failure = reason
                self._end(slot, done)

    def _end(self, slot: Slot, done: list[Slot]) -> None:
        if slot.pending:
            slot.pending = False
            done.append(slot)

    def _over(self, reason: str, done: list[Slot]) -> None:
        self.close()
        self._fail_calls(list(self._calls), reason, done)
