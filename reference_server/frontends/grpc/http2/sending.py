"""Streams (RFC 9113, section 5.1), flow control (section 5.2), and the sending side.

Frames that may be sent are added to the output at once; other bytes are queued in their stream. A
stream that waits for its own window continues at its WINDOW_UPDATE. Streams that wait for the
connection's window take turns, one frame each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_MAX_FRAME,
    INITIAL_TABLE_SIZE,
    INITIAL_WINDOW,
    MAX_31_BITS,
    ConnectionFault,
    ErrorCode,
    Setting,
    StreamFault,
)
from reference_server.frontends.grpc.http2.header_blocks import EMPTY_TABLE

Part = bytes | memoryview


class Stream:
    """A stream until its response ends.

    `opened_s` is the time of its opening, in seconds of the connection's clock. `send_window` may
    be negative after a change of settings. `queue` has the bytes that flow control holds back, in
    order; `trailers` is the block that ends the stream after the queue, None until it is known.
    With `is_held` the client gets no further window.
    """

    __slots__ = (
        "id",
        "is_held",
        "opened_s",
        "queue",
        "queued_bytes",
        "receive_window",
        "remote_ended",
        "send_window",
        "trailers",
    )

    def __init__(
        self, stream_id: int, send_window: int, receive_window: int, opened_s: float
    ) -> None:
        self.id = stream_id
        self.opened_s = opened_s
        self.send_window = send_window
        self.receive_window = FlowControlWindow(receive_window)
        self.queue: deque[Part] = deque()
        self.queued_bytes = 0
        self.trailers: bytes | None = None
        self.remote_ended = False
        self.is_held = False

    def __repr__(self) -> str:
        state = "client done" if self.remote_ended else "open"
        return f"<Stream {self.id} {state}, {self.queued_bytes} bytes wait>"


class FlowControlWindow:
    """The receive window of a stream or connection. It is refilled when half of it is used.

    Received bytes are consumed at once; delaying the refill stops the client.
    """

    __slots__ = ("_left", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size

    def take(self, size: int) -> bool:
        """Count `size` received bytes. Return False if they exceed the window."""
        self._left -= size
        return self._left >= 0

    def refill(self) -> int:
        """Return the number of bytes to grant now; 0 while less than half of the window is used."""
        used = self._size - self._left
        if used < self._size // 2:
            return 0
        self._left = self._size
        return used


#: A body up to this size is joined with its frame headers: for longer bodies, a copy costs more
#: than sending another buffer.
_JOINED_BYTES = 32_768


class Sender:
    """Writes the frames of one connection.

    `output` are the bytes to send, in order. `ended` are the streams whose responses are completely
    in `output`; `progressed` are the streams, by number, whose queued bytes were added to `output`.
    `unread_bytes` were sent although the transport's write buffer was full. `answered_bytes` are
    queued bytes of complete responses.
    """

    def __init__(self) -> None:
        self.output: list[Part] = []
        self.progressed: dict[int, Stream] = {}
        self.ended: list[Stream] = []
        self.unread_bytes = 0
        self.answered_bytes = 0
        self.initial_window = INITIAL_WINDOW
        self._window = INITIAL_WINDOW
        self._max_frame = INITIAL_MAX_FRAME
        self._block_prefix = b""
        self._is_paused = False
        #: Streams that wait for the connection's window or the transport.
        self._waiting: dict[int, Stream] = {}

    def take(self) -> list[Part]:
        """Remove and return the bytes to send."""
        output, self.output = self.output, []
        if self._is_paused:
            self.unread_bytes += sum(map(len, output))
        return output

    # -- responses

    def headers(self, stream: Stream, block: bytes) -> None:
        """Start a response."""
        self.output.append(self._headers(stream, block))

    def reply(self, stream: Stream, block: bytes, body: Sequence[Part], trailers: bytes) -> None:
        """Send a whole response: header block, body, trailers. A short response is one buffer."""
        size = sum(map(len, body))
        if not self._fits(stream, size):
            self.headers(stream, block)
            self.data(stream, body)
            self.finish(stream, trailers)
            return
        self._window -= size
        number = stream.id
        self.output.append(
            b"".join(
                (
                    self._headers(stream, block),
                    frames.frame_header(DATA, 0, number, size),
                    *body,
                    frames.frame_header(HEADERS, END_HEADERS | END_STREAM, number, len(trailers)),
                    trailers,
                )
            )
        )
        self.ended.append(stream)

    def data(self, stream: Stream, parts: Sequence[Part]) -> None:
        """Send a piece of the body."""
        size = sum(map(len, parts))
        if not stream.queue and self._fits(stream, size):
            self._window -= size
            stream.send_window -= size
            self.output.append(b"".join((frames.frame_header(DATA, 0, stream.id, size), *parts)))
            return
        stream.queue += [part for part in parts if part]
        stream.queued_bytes += size
        self._pump(stream)

    def finish(self, stream: Stream, trailers: bytes) -> None:
        """End the response with a header block, after the queued bytes."""
        if stream.trailers is None:
            self.answered_bytes += stream.queued_bytes
        stream.trailers = trailers
        self._pump(stream)

    def drop(self, stream: Stream) -> None:
        """Drop the queued bytes of an ended stream."""
        self._waiting.pop(stream.id, None)
        self.progressed.pop(stream.id, None)
        stream.queue.clear()
        if stream.trailers is not None:
            self.answered_bytes -= stream.queued_bytes
        stream.queued_bytes = 0
        stream.trailers = None

    def pause(self) -> None:
        """Produce no more output: the transport's write buffer is full."""
        self._is_paused = True

    def resume(self) -> None:
        """Produce output again."""
        self._is_paused = False
        self.unread_bytes = 0
        for stream in [stream for stream in self._waiting.values() if not stream.queue]:
            del self._waiting[stream.id]
            self._pump(stream)
        self._take_turns()

    # -- frames of the client

    def apply(self, settings: dict[int, int], streams: Iterable[Stream]) -> None:
        """Apply new settings. Raises ConnectionFault."""
        self._max_frame = settings.get(Setting.MAX_FRAME_SIZE, self._max_frame)
        if settings.get(Setting.HEADER_TABLE_SIZE, INITIAL_TABLE_SIZE) < INITIAL_TABLE_SIZE:
            # The next block has to confirm the size, although responses use no table (RFC 7541,
            # section 4.2).
            self._block_prefix = EMPTY_TABLE
        if Setting.INITIAL_WINDOW_SIZE not in settings:
            return
        # Applies to open streams, not to the connection's window (RFC 9113, section 6.9.2).
        wider = settings[Setting.INITIAL_WINDOW_SIZE] - self.initial_window
        self.initial_window += wider
        for stream in streams:
            stream.send_window += wider
            if stream.send_window > MAX_31_BITS:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window exceeds 2^31-1")
            self._pump(stream)

    def widen(self, increment: int) -> None:
        """Widen the connection's window. Raises ConnectionFault."""
        self._window += increment
        if self._window > MAX_31_BITS:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window exceeds 2^31-1")
        self._take_turns()

    def widen_stream(self, stream: Stream, increment: int) -> None:
        """Widen a stream's window. Raises StreamFault."""
        stream.send_window += increment
        if stream.send_window > MAX_31_BITS:
            raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR)
        self._pump(stream)

    # -- private

    def _fits(self, stream: Stream, size: int) -> bool:
        """Return True if `size` bytes are few and may be sent at once."""
        return (
            size <= _JOINED_BYTES
            and size <= self._window
            and size <= stream.send_window
            and size <= self._max_frame
            and not self._is_paused
        )

    def _headers(self, stream: Stream, block: bytes, end: int = 0) -> bytes:
        """Return HEADERS, and CONTINUATION for a long block. `end` is END_STREAM or 0."""
        if self._block_prefix:
            block, self._block_prefix = self._block_prefix + block, b""
        room = self._max_frame
        if len(block) <= room:
            return frames.frame(HEADERS, END_HEADERS | end, stream.id, block)
        pieces = [block[start : start + room] for start in range(0, len(block), room)]
        first, *middle, last = pieces
        return b"".join(
            (
                frames.frame(HEADERS, end, stream.id, first),
                *(frames.frame(frames.CONTINUATION, 0, stream.id, piece) for piece in middle),
                frames.frame(frames.CONTINUATION, END_HEADERS, stream.id, last),
            )
        )

    def _pump(self, stream: Stream) -> None:
        """Send what flow control allows on a stream; queue it if the connection has no window."""
        while stream.queue and stream.send_window > 0:
            if self._is_paused or self._window <= 0:
                self._waiting[stream.id] = stream
                return
            self._send_frame(stream)
        if stream.queue or stream.trailers is None:
            return
        if self._is_paused:
            self._waiting[stream.id] = stream
            return
        trailers, stream.trailers = stream.trailers, None
        self.output.append(self._headers(stream, trailers, END_STREAM))
        self.ended.append(stream)

    def _take_turns(self) -> None:
        """Let the waiting streams send one frame each, in turns."""
        while self._waiting and not self._is_paused:
            number, stream = next(iter(self._waiting.items()))
            if stream.queue and self._window <= 0:
                return
            del self._waiting[number]
            if stream.queue and stream.send_window > 0:
                self._send_frame(stream)
            if stream.queue and stream.send_window > 0:
                self._waiting[number] = stream
            else:
                self._pump(stream)

    def _send_frame(self, stream: Stream) -> None:
        """Send one frame of a stream's queued bytes, as large as the windows allow."""
        room = min(self._window, stream.send_window, self._max_frame)
        parts, size = _take(stream.queue, room)
        self._window -= size
        stream.send_window -= size
        stream.queued_bytes -= size
        if stream.trailers is not None:
            self.answered_bytes -= size
        self.progressed[stream.id] = stream
        start = frames.frame_header(DATA, 0, stream.id, size)
        if size <= _JOINED_BYTES:
            self.output.append(b"".join((start, *parts)))
        else:
            self.output.append(start)
            self.output += parts


def _take(queue: deque[Part], room: int) -> tuple[list[Part], int]:
    """Remove up to `room` bytes from a non-empty queue; return them and their size."""
    parts: list[Part] = []
    left = room
    while queue and left:
        part = queue.popleft()
        if len(part) > left:
            view = memoryview(part)
            queue.appendleft(view[left:])
            part = view[:left]
        parts.append(part)
        left -= len(part)
    return parts, room - left


# -- the streams of one connection: open, ended and abandoned ones

#: The number of streams reset by the server whose late frames are ignored.
_REMEMBERED = 4_096
#: With more queued bytes than this, a stream's client gets no further window.
_BACKLOG_BYTES = 2**22


class StreamTable:
    """The open streams by their numbers.

    `opened` is the last stream that the client opened. Streams from `refused_from` on are not
    served.
    """

    def __init__(self, sender: Sender) -> None:
        self.open: dict[int, Stream] = {}
        self.opened = 0
        self.refused_from = frames.MAX_31_BITS + 1
        self._sender = sender
        self._withheld: dict[int, Stream] = {}  # streams whose window refill is delayed
        self._abandoned: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<StreamTable {list(self.open.values())}>"

    def check_known(self, stream_id: int) -> None:
        """Raise ConnectionFault if the client has not opened a stream of this number."""
        if not stream_id & 1 or stream_id > self.opened:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is idle")

    def is_abandoned(self, stream_id: int) -> bool:
        """Return True if late frames of the stream must be ignored."""
        return stream_id in self._abandoned

    def abandon(self, stream_id: int) -> None:
        """Ignore further frames of the stream: the client may not know that the stream ended."""
        if len(self._abandoned) == _REMEMBERED:
            del self._abandoned[next(iter(self._abandoned))]
        self._abandoned[stream_id] = None

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End the stream at once with RST_STREAM; its queued bytes are dropped."""
        self._sender.output.append(frames.rst_stream(stream_id, code))
        self.abandon(stream_id)
        stream = self.open.get(stream_id)
        if stream is not None:
            self.forget(stream)

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended on both sides."""
        self._sender.drop(stream)
        self._withheld.pop(stream.id, None)
        del self.open[stream.id]

    def refill(self, stream: Stream) -> None:
        """Grant the client more window, unless the stream is held or has too many queued bytes."""
        if stream.is_held or stream.queued_bytes > _BACKLOG_BYTES:
            self._withheld[stream.id] = stream
        elif increment := stream.receive_window.refill():
            self._sender.output.append(frames.window_update(stream.id, increment))

    def reconcile(self) -> None:
        """Remove streams whose responses have ended, and refill withheld windows; after sending."""
        ended = self._sender.ended
        while ended:
            stream = ended.pop()
            if stream.remote_ended:
                self.forget(stream)
            else:  # the rest of the request is not needed (RFC 9113, section 8.1)
                self.reset(stream.id, ErrorCode.NO_ERROR)
        if self._withheld:
            withheld, self._withheld = self._withheld, {}
            for stream in withheld.values():
                self.refill(stream)

    def end(self, code: ErrorCode, reason: bytes) -> None:
        """Send GOAWAY: only streams that are already open are served.

        The announced stream number never grows: the client may already have repeated requests with
        higher numbers elsewhere.
        """
        self.refused_from = min(self.refused_from, self.opened + 1)
        self._sender.output.append(frames.goaway(self.refused_from - 1, code, reason))

    def clear(self) -> None:
        """Remove all streams with their queued bytes."""
        for stream in tuple(self.open.values()):
            self.forget(stream)
        self._sender.ended.clear()
