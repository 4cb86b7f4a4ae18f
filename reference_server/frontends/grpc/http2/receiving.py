"""The receiving side (RFC 9113, section 6): events from frames, with limits against abuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    ConnectionFault,
    ErrorCode,
    FrameReader,
    Limits,
    StreamFault,
)
from reference_server.frontends.grpc.http2.header_blocks import BlockAssembler, Fields, HeaderReader
from reference_server.frontends.grpc.http2.sending import (
    FlowControlWindow,
    Sender,
    Stream,
    StreamTable,
)

#: SETTINGS cost as much as this many idle frames, and for each open stream `_COST_PER_STREAM` more,
#: because they may change the window of every stream.
_SETTINGS_COST = 10
_COST_PER_STREAM = 0.1
_PING_BYTES = 8
#: DATA or a window update of fewer bytes counts as a small frame.
_SMALL_BYTES = 16


# -- events of the client; streams are named by their numbers


class RequestStarted(NamedTuple):
    """A stream was opened with these header fields; `ended` if the request has no body."""

    stream_id: int
    fields: Fields
    ended: bool


class DataReceived(NamedTuple):
    """A piece of a request's body, valid until the next `receive`; `ended` if it is the last."""

    stream_id: int
    data: memoryview
    ended: bool


class RequestEnded(NamedTuple):
    """The request ended with trailers, whose content is ignored."""

    stream_id: int


class StreamEnded(NamedTuple):
    """The stream has ended, because the client reset it or violated the protocol."""

    stream_id: int


class PingReceived(NamedTuple):
    """The client sent a ping; it is already answered."""


class PongReceived(NamedTuple):
    """The client answered the ping with this payload."""

    payload: bytes


class ConnectionFailed(NamedTuple):
    """The connection has ended because the client violated the protocol.

    Further bytes are ignored. `reason` starts with the name of the error code and a colon.
    """

    reason: str


_RequestEvent = RequestStarted | DataReceived | RequestEnded | StreamEnded
Event = _RequestEvent | PingReceived | PongReceived | ConnectionFailed


# -- limits for frames without a request
#
# Frames that cost the server more than the client, and make no progress, are limited by allowances
# that grow with time (against "rapid reset", CVE-2023-44487, and similar attacks). Well-behaved
# clients stay far below them.


class RateAllowance:
    """A rate limit: at most `burst` at once, and `per_s` for each second."""

    def __init__(self, what: str, burst: float, per_s: float) -> None:
        self._what = what
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._since_s: float | None = None

    def spend(self, now_s: float, cost: float = 1) -> None:
        """Subtract `cost`. Raises ConnectionFault if the allowance is exhausted."""
        if self._since_s is not None:
            grown = (now_s - self._since_s) * self._per_s
            self._left = min(self._burst, self._left + grown)
        self._since_s = now_s
        self._left -= cost
        if self._left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._what}")


#: A stream reset within this time counts as abuse. Clients also reset streams when a deadline
#: expires, but deadlines are usually longer.
YOUNG_S = 0.05


class AbuseLimits:
    """The rate limits of one connection."""

    def __init__(self) -> None:
        #: Streams reset right after their opening: each causes useless work, and the limit of open
        #: streams does not apply to them.
        self.resets = RateAllowance("reset streams", burst=2_000, per_s=1_000)
        #: Pings, settings, empty DATA, priorities, unknown frames, and frames of ended streams.
        self.idle_frames = RateAllowance("idle frames", burst=10_000, per_s=1_000)
        #: Short DATA that does not end a request, and small window updates.
        self.small_frames = RateAllowance("small frames", burst=100_000, per_s=20_000)


# -- the receiver


class Receiver:
    """Processes the frames of one connection: changes its streams and answers control frames."""

    def __init__(self, limits: Limits, sender: Sender, table: StreamTable) -> None:
        self._limits = limits
        self._sender = sender
        self._table = table
        self._streams = table.open
        self._frames = FrameReader(limits.max_frame, limits.max_header_block)
        self._header_reader = HeaderReader(limits.max_header_block)
        self._blocks = BlockAssembler(limits.max_header_block)
        self._window = FlowControlWindow(limits.connection_window)
        self._is_held = False
        self._guard = AbuseLimits()
        self.is_greeted = False
        self._now_s = 0.0
        self._events: list[Event] = []
        self.has_failed = False

    @property
    def unfinished_data(self) -> tuple[int, int]:
        """The stream of an incomplete DATA frame, and the number of its missing bytes."""
        return self._frames.unfinished_data

    def whole(self, data: memoryview) -> int:
        """Return the size of the short, complete frames at the start of `data`."""
        return self._frames.whole(data)

    @property
    def unfinished_block(self) -> int:
        """The stream of an incomplete header block, or 0."""
        return self._blocks.stream_id

    def receive(self, data: memoryview, now_s: float) -> list[Event]:
        """Return the events in `data`, in order. Frames may be split anywhere."""
        if self.has_failed:
            return []
        self._now_s = now_s
        try:
            if self._sender.unread_bytes > self._limits.max_unread:
                raise ConnectionFault(
                    ErrorCode.ENHANCE_YOUR_CALM, "the client does not read control frames"
                )
            for kind, flags, stream_id, payload in self._frames.feed(data):
                if self._blocks.stream_id or not self.is_greeted:
                    self._check_order(kind, flags, stream_id)
                handler = _HANDLERS.get(kind)
                if handler is None:
                    self._guard.idle_frames.spend(now_s)
                    continue
                try:
                    handler(self, flags, stream_id, payload)
                except StreamFault as fault:
                    self._fail_stream(fault)
        except ConnectionFault as fault:
            self._fail(fault)
        # Events are not kept: they may be views of much memory.
        events, self._events = self._events, []
        return events

    def hold(self, *, held: bool) -> None:
        """Stop or resume granting window for the whole connection."""
        self._is_held = held
        self._refill()

    def _refill(self) -> None:
        if not self._is_held and (increment := self._window.refill()):
            self._sender.output.append(frames.window_update(0, increment))

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        """Check that SETTINGS come first, and that header blocks are not interrupted."""
        if not self.is_greeted:
            if kind != frames.SETTINGS or flags & ACK:
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR, "expected SETTINGS as the first frame"
                )
            self.is_greeted = True
        unfinished = self._blocks.stream_id
        if unfinished and (kind != frames.CONTINUATION or stream_id != unfinished):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "expected CONTINUATION of the header block"
            )

    def _on_data(self, flags: int, stream_id: int, payload: memoryview) -> None:
        size = len(payload)
        # First, since DATA of ended streams count for the connection's window, too (section 6.9).
        if not self._window.take(size):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "DATA exceeds the window")
        self._refill()
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
            if size < _SMALL_BYTES:
                self._guard.small_frames.spend(self._now_s)
            self._table.refill(stream)
        if flags & frames.PADDED:
            payload = frames.without_padding(flags, payload)
        self._events.append(DataReceived(stream_id, payload, ended))

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
        """Process a complete header block. It must be decoded: the next block may refer to it."""
        fields = self._header_reader.read(block)
        ended = bool(flags & END_STREAM)
        if stream_id <= self._table.opened:
            self._on_trailers(stream_id, ended)
            return
        if not stream_id & 1:  # RFC 9113, section 5.1.1
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "even stream number")
        self._table.opened = stream_id
        if stream_id >= self._table.refused_from:
            self._table.abandon(stream_id)
            return
        if len(self._streams) >= self._limits.max_streams:
            # With this code the client may repeat the request (section 8.7).
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM)
        stream = Stream(
            stream_id, self._sender.initial_window, self._limits.stream_window, self._now_s
        )
        stream.remote_ended = ended
        self._streams[stream_id] = stream
        self._events.append(RequestStarted(stream_id, fields, ended))

    def _on_trailers(self, stream_id: int, ended: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self._table.check_known(stream_id)
            if not self._table.is_abandoned(stream_id):
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
            self._guard.idle_frames.spend(self._now_s)
            return
        if stream.remote_ended:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
        if not ended:  # a second block can only be trailers, which end the request (section 8.1)
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream.remote_ended = True
        self._events.append(RequestEnded(stream_id))

    def _on_priority(self, _: int, stream_id: int, payload: memoryview) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._guard.idle_frames.spend(self._now_s)
        # Checked and ignored: RFC 9113 deprecates priorities (section 5.3.2).
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
        self._table.forget(stream)
        self._events.append(StreamEnded(stream_id))

    def _on_settings(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        cost = _SETTINGS_COST + _COST_PER_STREAM * len(self._streams)
        self._guard.idle_frames.spend(self._now_s, cost)
        if flags & ACK:
            if payload:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload"
                )
            return
        self._sender.output.append(frames.frame(frames.SETTINGS, ACK))
        self._sender.apply(frames.parse_settings(payload), tuple(self._streams.values()))
        self._table.reconcile()

    def _on_push_promise(self, _: int, stream_id: int, payload: memoryview) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_ping(self, flags: int, stream_id: int, payload: memoryview) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING payload must have 8 bytes")
        self._guard.idle_frames.spend(self._now_s)
        if flags & ACK:
            self._events.append(PongReceived(bytes(payload)))
            return
        self._sender.output.append(frames.frame(frames.PING, ACK, payload=bytes(payload)))
        self._events.append(PingReceived())

    def _on_goaway(self, _: int, stream_id: int, payload: memoryview) -> None:
        """The client will open no streams; open streams continue."""
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, "GOAWAY payload must have at least 8 bytes"
            )
        self._guard.idle_frames.spend(self._now_s)

    def _on_window_update(self, _: int, stream_id: int, payload: memoryview) -> None:
        increment = frames.uint32(payload) & frames.MAX_31_BITS
        if increment < _SMALL_BYTES:
            self._guard.small_frames.spend(self._now_s)
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "window increment of 0")
            self._sender.widen(increment)
            self._table.reconcile()
            return
        self._table.check_known(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:  # closed before the client's frame arrived (section 6.9)
            return
        if not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._sender.widen_stream(stream, increment)
        self._table.reconcile()

    # -- errors of the client

    def _fail_stream(self, fault: StreamFault) -> None:
        """End a stream for an error of its client."""
        self._guard.resets.spend(self._now_s)
        if fault.stream_id in self._streams:
            self._events.append(StreamEnded(fault.stream_id))
        self._table.reset(fault.stream_id, fault.code)

    def _fail(self, fault: ConnectionFault) -> None:
        """End the connection because the client violated the protocol."""
        self.has_failed = True
        self._table.end(fault.code, fault.reason.encode())
        self._events += map(StreamEnded, self._streams)
        self._events.append(ConnectionFailed(str(fault)))
        self._table.clear()


_HANDLERS: dict[int, Callable[[Receiver, int, int, memoryview], None]] = {
    frames.DATA: Receiver._on_data,
    frames.HEADERS: Receiver._on_headers,
    frames.PRIORITY: Receiver._on_priority,
    frames.RST_STREAM: Receiver._on_rst_stream,
    frames.SETTINGS: Receiver._on_settings,
    frames.PUSH_PROMISE: Receiver._on_push_promise,
    frames.PING: Receiver._on_ping,
    frames.GOAWAY: Receiver._on_goaway,
    frames.WINDOW_UPDATE: Receiver._on_window_update,
    frames.CONTINUATION: Receiver._on_continuation,
}
