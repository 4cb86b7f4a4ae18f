"""One connection of HTTP/2, the server's side: joins what the other modules do.

    events = connection.receive(data, now_s)     what the client did
    connection.reply(stream_id, ...)             what the server says
    parts = connection.take_output()             the bytes to send, in order

Nothing here blocks, and nothing is raised for what a client does: faults are answered as
RFC 9113 says, and told as events.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.fronts.grpc.http2 import frames, settings
from reference_server.fronts.grpc.http2.abuse import YOUNG_S, Guard
from reference_server.fronts.grpc.http2.errors import ConnectionFault, ErrorCode, StreamFault
from reference_server.fronts.grpc.http2.events import (
    ConnectionFailed,
    DataCame,
    Event,
    PingCame,
    PongCame,
    RequestBegan,
    RequestEnded,
    StreamGone,
)
from reference_server.fronts.grpc.http2.flow import ReceiveWindow
from reference_server.fronts.grpc.http2.frames import ACK, END_HEADERS, END_STREAM, FrameReader
from reference_server.fronts.grpc.http2.header_blocks import BlockAssembler, HeaderReader
from reference_server.fronts.grpc.http2.sending import Sender
from reference_server.fronts.grpc.http2.settings import Limits
from reference_server.fronts.grpc.http2.streams import Part, Stream, StreamTable

#: Bytes that wait on a stream from which its client may not send more on it.
_BACKLOG_BYTES = 2**22
#: What SETTINGS cost, in frames without use: each may touch all streams.
_SETTINGS_COST = 10
_PING_BYTES = 8


class Http2Connection:
    """A connection, from its first byte. All times are of one clock, in seconds."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._frames = FrameReader(self._limits.max_frame, self._limits.max_header_block)
        self._header_reader = HeaderReader(self._limits.max_header_block)
        self._blocks = BlockAssembler(self._limits.max_header_block)
        self._window = ReceiveWindow(self._limits.connection_window)
        self._guard = Guard()
        self._sender = Sender()
        self._sender.output.append(self._limits.opening())
        self._table = StreamTable()
        self._streams = self._table.open
        self._withheld: dict[int, Stream] = {}  # those whose clients are held up
        self._refused_from = frames.MAX_31_BITS + 1  # streams from this on are not looked at
        self._is_greeted = False
        self._has_failed = False
        self._now_s = 0.0
        self._events: list[Event] = []
        self._handlers = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }

    def __repr__(self) -> str:
        state = "failed" if self._has_failed else "open"
        return f"<Http2Connection {state}, {self._table}>"

    @property
    def open_streams(self) -> int:
        """How many streams are open, or half closed."""
        return len(self._streams)

    # -- bytes

    def receive(self, data: memoryview, now_s: float) -> list[Event]:
        """What the client did, in order. `data` may end anywhere."""
        events = self._events = []
        if self._has_failed:
            return events
        self._now_s = now_s
        try:
            for kind, flags, stream_id, payload in self._frames.feed(data):
                if self._blocks.stream_id or not self._is_greeted:
                    self._check_order(kind, flags, stream_id)
                handler = self._handlers.get(kind)
                if handler is None:
                    self._guard.idle_frames.spend(now_s)
                    continue
                try:
                    handler(flags, stream_id, payload)
                except StreamFault as fault:
                    self._give_up(fault)
        except ConnectionFault as fault:
            self._fail(fault)
        return events

    def take_output(self) -> list[Part]:
        """The bytes to send now."""
        output, self._sender.output = self._sender.output, []
        return output

    # -- what the server says

    def headers(self, stream_id: int, block: bytes) -> None:
        """Begin a response. Here and below nothing is said on a stream that is gone."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.headers(stream, block)

    def data(self, stream_id: int, *parts: Part) -> None:
        """Send a piece of the response's body; `parts` must not change any more."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.data(stream, parts)

    def finish(self, stream_id: int, block: bytes) -> None:
        """End the response with this block, which may be all of it."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.finish(stream, block)
            self._settle()

    def reply(self, stream_id: int, block: bytes, body: Sequence[Part], trailers: bytes) -> None:
        """Send a whole response: header block, body, trailers."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.reply(stream, block, body, trailers)
            self._settle()

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream at once, whatever waits on it."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._abandon(stream, code)

    def ping(self, payload: bytes) -> None:
        """Ask for a sign of life; `payload` has 8 bytes."""
        self._sender.output.append(frames.frame(frames.PING, payload=payload))

    def announce_end(self) -> None:
        """Say that the connection will end. Streams that the client opens meanwhile are served."""
        self._sender.output.append(frames.goaway(frames.MAX_31_BITS, ErrorCode.NO_ERROR))

    def end(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: bytes = b"") -> None:
        """Say that no stream but those that have begun is served."""
        self._refused_from = self._table.opened + 1
        self._sender.output.append(frames.goaway(self._table.opened, code, reason))

    def pause(self) -> None:
        """Hold responses back: the transport has enough to send."""
        self._sender.pause()

    def resume(self) -> None:
        """Send responses on."""
        self._sender.resume()
        self._settle()

    # -- frames

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        """SETTINGS come first, and nothing comes between the parts of a header block."""
        if not self._is_greeted:
            if kind != frames.SETTINGS or flags & ACK:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no SETTINGS at the start")
            self._is_greeted = True
        unfinished = self._blocks.stream_id
        if unfinished and (kind != frames.CONTINUATION or stream_id != unfinished):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is not finished")

    def _on_data(self, flags: int, stream_id: int, payload: memoryview) -> None:
        size = len(payload)
        if not self._window.take(size):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than was allowed")
        if increment := self._window.refill():
            self._sender.output.append(frames.window_update(0, increment))
        stream = self._streams.get(stream_id)
        if stream is None:
            self._table.check_known(stream_id)
            if not size:
                self._guard.idle_frames.spend(self._now_s)
            if self._table.is_abandoned(stream_id):
                return
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
        if stream.remote_ended:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
        if not stream.receive_window.take(size):
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        ended = bool(flags & END_STREAM)
        if ended:
            stream.remote_ended = True
        elif not size:
            self._guard.idle_frames.spend(self._now_s)
        else:
            self._refill(stream)
        if flags & frames.PADDED:
            payload = frames.without_padding(flags, payload)
        self._events.append(DataCame(stream_id, payload, ended))

    def _on_headers(self, flags: int, stream_id: int, payload: memoryview) -> None:
        payload = frames.without_padding(flags, payload)
        payload = frames.without_priority(flags, stream_id, payload)
        if flags & END_HEADERS:
            self._on_block(flags, stream_id, bytes(payload))
        elif stream_id:
            self._blocks.begin(stream_id, flags, payload)
        else:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")

    def _on_continuation(self, flags: int, stream_id: int, payload: memoryview) -> None:
        whole = self._blocks.add(flags, payload)
        if whole is not None:
            self._on_block(whole[0], stream_id, whole[1])

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """A whole header block, which must be read in any case: the next one builds on it."""
        fields = self._header_reader.read(block)
        ended = bool(flags & END_STREAM)
        if stream_id <= self._table.opened:
            self._on_trailers(stream_id, ended)
            return
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an even stream of a client")
        self._table.opened = stream_id
        if stream_id >= self._refused_from:
            self._table.abandon(stream_id)
            return
        if len(self._streams) >= self._limits.max_streams:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM)
        stream = Stream(
            stream_id, self._sender.initial_window, self._limits.stream_window, self._now_s
        )
        stream.remote_ended = ended
        self._streams[stream_id] = stream
        self._events.append(RequestBegan(stream_id, fields, ended))

    def _on_trailers(self, stream_id: int, ended: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self._table.check_known(stream_id)
            if not self._table.is_abandoned(stream_id):
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a stream that is closed")
            self._guard.idle_frames.spend(self._now_s)
            return
        if stream.remote_ended:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
        if not ended:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream.remote_ended = True
        self._events.append(RequestEnded(stream_id))

    def _on_priority(self, _: int, stream_id: int, payload: memoryview) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._guard.idle_frames.spend(self._now_s)
        if len(payload) != 5:
            raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR)

    def _on_rst_stream(self, _: int, stream_id: int, payload: memoryview) -> None:
        frames.uint32(payload)
        self._table.check_known(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._guard.idle_frames.spend(self._now_s)
            return
        if self._now_s - stream.opened_s < YOUNG_S:
            self._guard.resets.spend(self._now_s)
        self._forget(stream)
        self._events.append(StreamGone(stream_id))

    def _on_settings(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._guard.idle_frames.spend(self._now_s, _SETTINGS_COST)
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "settings that acknowledge")
            return
        self._sender.output.append(frames.frame(frames.SETTINGS, ACK))
        self._sender.apply(settings.parse(payload), tuple(self._streams.values()))
        self._settle()

    def _on_push_promise(self, _: int, stream_id: int, payload: memoryview) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _on_ping(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING without 8 bytes")
        self._guard.idle_frames.spend(self._now_s)
        if flags & ACK:
            self._events.append(PongCame(bytes(payload)))
            return
        self._sender.output.append(frames.frame(frames.PING, ACK, payload=bytes(payload)))
        self._events.append(PingCame())

    def _on_goaway(self, _: int, stream_id: int, payload: memoryview) -> None:
        """The client will open no streams; those that are open go on."""
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of less than 8 bytes")
        self._guard.idle_frames.spend(self._now_s)

    def _on_window_update(self, _: int, stream_id: int, payload: memoryview) -> None:
        increment = frames.uint32(payload) & frames.MAX_31_BITS
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window that is not widened")
            self._sender.widen(increment)
            self._settle()
            return
        self._table.check_known(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:  # closed since the client sent this
            return
        if not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._sender.widen_stream(stream, increment)
        self._settle()

    # -- streams

    def _refill(self, stream: Stream) -> None:
        """Let the client send more on this stream, if it takes what it is sent."""
        if stream.queued_bytes > _BACKLOG_BYTES:
            self._withheld[stream.id] = stream
        elif increment := stream.receive_window.refill():
            self._sender.output.append(frames.window_update(stream.id, increment))

    def _settle(self) -> None:
        """Follow what was sent: close streams whose responses have ended, let clients go on."""
        ended = self._sender.ended
        while ended:
            stream = ended.pop()
            if stream.remote_ended:
                self._forget(stream)
            else:  # the rest of the request is not wanted
                self._abandon(stream, ErrorCode.NO_ERROR)
        if self._withheld:
            withheld, self._withheld = self._withheld, {}
            for stream in withheld.values():
                self._refill(stream)

    def _abandon(self, stream: Stream, code: ErrorCode) -> None:
        self._sender.output.append(frames.rst_stream(stream.id, code))
        self._table.abandon(stream.id)
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self._sender.drop(stream)
        self._withheld.pop(stream.id, None)
        del self._streams[stream.id]

    def _give_up(self, fault: StreamFault) -> None:
        """End a stream over what its client did."""
        self._guard.resets.spend(self._now_s)
        stream = self._streams.get(fault.stream_id)
        if stream is None:
            self._sender.output.append(frames.rst_stream(fault.stream_id, fault.code))
            self._table.abandon(fault.stream_id)
            return
        self._abandon(stream, fault.code)
        self._events.append(StreamGone(stream.id))

    def _fail(self, fault: ConnectionFault) -> None:
        """End the connection over what the client did."""
        self._has_failed = True
        self.end(fault.code, fault.reason.encode())
        for stream in tuple(self._streams.values()):
            self._forget(stream)
            self._events.append(StreamGone(stream.id))
        self._sender.ended.clear()
        self._events.append(ConnectionFailed(str(fault)))
