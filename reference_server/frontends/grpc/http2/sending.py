"""The way out: answers to frames, as fast as flow control lets them.

Whatever may be sent is put into the output at once; the rest waits in its stream. A stream that
waits for its own window is woken by its own WINDOW_UPDATE; those that wait for the connection's
window take turns, a frame each.
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
from reference_server.frontends.grpc.http2.streams import Part, Stream

#: Up to this many bytes of a body are joined with what stands around them; above, what a copy costs
#: is more than what a buffer of its own costs.
_JOINED_BYTES = 32_768


class Sender:
    """Writes the frames of one connection.

    `output` is what is to be sent, in order; `ended` are the streams whose responses are all in it,
    `moved` those, by number, of which it has what had waited.
    `unread_bytes` were sent all the same since the transport had enough. `answered_bytes` wait in
    streams whose responses are complete.
    """

    def __init__(self) -> None:
        self.output: list[Part] = []
        self.moved: dict[int, Stream] = {}
        self.ended: list[Stream] = []
        self.unread_bytes = 0
        self.answered_bytes = 0
        self.initial_window = INITIAL_WINDOW
        self._window = INITIAL_WINDOW
        self._max_frame = INITIAL_MAX_FRAME
        self._block_prefix = b""
        self._is_paused = False
        #: Streams that could send, were it not for the connection.
        self._waiting: dict[int, Stream] = {}

    def take(self) -> list[Part]:
        """The bytes to send now."""
        output, self.output = self.output, []
        if self._is_paused:
            self.unread_bytes += sum(map(len, output))
        return output

    # -- what the server says

    def headers(self, stream: Stream, block: bytes) -> None:
        """Begin a response."""
        self.output.append(self._headers(stream, block))

    def reply(self, stream: Stream, block: bytes, body: Sequence[Part], trailers: bytes) -> None:
        """Send a whole response: header block, body, trailers; in one piece, if it is short."""
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
        """End the response with this block, after what waits; it may be all of the response."""
        if stream.trailers is None:
            self.answered_bytes += stream.queued_bytes
        stream.trailers = trailers
        self._pump(stream)

    def drop(self, stream: Stream) -> None:
        """Forget what waits on a stream that is gone."""
        self._waiting.pop(stream.id, None)
        self.moved.pop(stream.id, None)
        stream.queue.clear()
        if stream.trailers is not None:
            self.answered_bytes -= stream.queued_bytes
        stream.queued_bytes = 0
        stream.trailers = None

    def pause(self) -> None:
        """Hold back what is not there yet: the transport has enough."""
        self._is_paused = True

    def resume(self) -> None:
        """Send on."""
        self._is_paused = False
        self.unread_bytes = 0
        for stream in [stream for stream in self._waiting.values() if not stream.queue]:
            del self._waiting[stream.id]
            self._pump(stream)
        self._take_turns()

    # -- what the client says

    def apply(self, settings: dict[int, int], streams: Iterable[Stream]) -> None:
        """Obey new settings. Raises ConnectionFault."""
        self._max_frame = settings.get(Setting.MAX_FRAME_SIZE, self._max_frame)
        if settings.get(Setting.HEADER_TABLE_SIZE, INITIAL_TABLE_SIZE) < INITIAL_TABLE_SIZE:
            # The next block has to say so, though no table is used (RFC 7541, section 4.2).
            self._block_prefix = EMPTY_TABLE
        if Setting.INITIAL_WINDOW_SIZE not in settings:
            return
        # Open streams follow, the connection's window does not (RFC 9113, section 6.9.2).
        wider = settings[Setting.INITIAL_WINDOW_SIZE] - self.initial_window
        self.initial_window += wider
        for stream in streams:
            stream.send_window += wider
            if stream.send_window > MAX_31_BITS:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window of 32 bits")
            self._pump(stream)

    def widen(self, increment: int) -> None:
        """More may be sent on all streams together. Raises ConnectionFault."""
        self._window += increment
        if self._window > MAX_31_BITS:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window of 32 bits")
        self._take_turns()

    def widen_stream(self, stream: Stream, increment: int) -> None:
        """More may be sent on this stream. Raises StreamFault."""
        stream.send_window += increment
        if stream.send_window > MAX_31_BITS:
            raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR)
        self._pump(stream)

    # -- inside

    def _fits(self, stream: Stream, size: int) -> bool:
        """True if so many bytes are few, and may be sent at once."""
        return (
            size <= _JOINED_BYTES
            and size <= self._window
            and size <= stream.send_window
            and size <= self._max_frame
            and not self._is_paused
        )

    def _headers(self, stream: Stream, block: bytes, end: int = 0) -> bytes:
        """HEADERS, and CONTINUATION where the block is longer; `end` is END_STREAM or 0."""
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
        """Send what may be sent on a stream; put it in line if the connection is in the way."""
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
        """Let those in line send a frame each, round and round."""
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
        """Send one frame of what waits on a stream, as long as the windows let it be."""
        room = min(self._window, stream.send_window, self._max_frame)
        parts, size = _taken(stream.queue, room)
        self._window -= size
        stream.send_window -= size
        stream.queued_bytes -= size
        if stream.trailers is not None:
            self.answered_bytes -= size
        self.moved[stream.id] = stream
        start = frames.frame_header(DATA, 0, stream.id, size)
        if size <= _JOINED_BYTES:
            self.output.append(b"".join((start, *parts)))
        else:
            self.output.append(start)
            self.output += parts


def _taken(queue: deque[Part], room: int) -> tuple[list[Part], int]:
    """Up to `room` bytes from the front of the queue, which is not empty, and how many."""
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
