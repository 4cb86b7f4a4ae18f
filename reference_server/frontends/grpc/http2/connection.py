"""One HTTP/2 connection, server side, without I/O.

    events = connection.receive(data, now_s)     events of the client
    connection.reply(stream_id, ...)             responses
    parts = connection.take_output()             the bytes to send, in order

No method blocks. An error of the client raises no exception: it is answered as RFC 9113 requires,
and returned as an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.frames import ErrorCode, Limits
from reference_server.frontends.grpc.http2.receiving import Event, Receiver
from reference_server.frontends.grpc.http2.sending import Part, Sender, StreamTable


class Http2Connection:
    """A connection from its first byte. Times are in seconds, of one clock."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._sender = Sender()
        self._sender.output.append(limits.opening())
        self._table = StreamTable(self._sender)
        self._streams = self._table.open
        self._receiver = Receiver(limits, self._sender, self._table)

    def __repr__(self) -> str:
        state = "failed" if self._receiver.has_failed else "open"
        return f"<Http2Connection {state}, {self._table}>"

    @property
    def open_streams(self) -> int:
        """The number of open or half-closed streams."""
        return len(self._streams)

    @property
    def is_greeted(self) -> bool:
        """True once the client has sent the HTTP/2 preface and its settings."""
        return self._receiver.is_greeted

    @property
    def opened(self) -> int:
        """The number of the last stream that the client opened."""
        return self._table.opened

    @property
    def unfinished_block(self) -> int:
        """The stream of an incomplete header block, or 0."""
        return self._receiver.unfinished_block

    @property
    def answered_bytes(self) -> int:
        """The number of queued bytes of complete responses."""
        return self._sender.answered_bytes

    def unread(self) -> Iterator[tuple[int, int]]:
        """Yield each stream with queued bytes, and the number of these bytes."""
        for stream in self._streams.values():
            if stream.queue:
                yield stream.id, stream.queued_bytes

    # -- bytes

    def receive(self, data: memoryview, now_s: float) -> list[Event]:
        """Return the events in `data`, in order. Frames may be split anywhere."""
        return self._receiver.receive(data, now_s)

    @property
    def unfinished_data(self) -> tuple[int, int]:
        """The stream of an incomplete DATA frame, and the number of its missing bytes."""
        return self._receiver.unfinished_data

    def whole(self, data: memoryview) -> int:
        """Return the size of the short, complete frames at the start of `data`."""
        return self._receiver.whole(data)

    def take_output(self) -> list[Part]:
        """Remove and return the bytes to send."""
        return self._sender.take()

    def take_progress(self) -> Sequence[tuple[int, int]]:
        """Return each stream with newly sent bytes, and the number of bytes still queued."""
        progressed = self._sender.progressed
        if not progressed:
            return ()
        found = [(stream.id, stream.queued_bytes) for stream in progressed.values()]
        progressed.clear()
        return found

    # -- responses

    def headers(self, stream_id: int, block: bytes) -> None:
        """Start a response. This and the following methods ignore streams that have ended."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.headers(stream, block)

    def data(self, stream_id: int, *parts: Part) -> int:
        """Send a piece of a response's body; `parts` must not be changed afterwards.

        Returns the number of queued bytes of the body.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        self._sender.data(stream, parts)
        return stream.queued_bytes

    def hold(self, stream_id: int, *, held: bool) -> None:
        """Stop or resume granting window to the client of a stream."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.is_held = held
            self._table.reconcile()

    def hold_all(self, *, held: bool) -> None:
        """Stop or resume granting window for the whole connection."""
        self._receiver.hold(held=held)

    def finish(self, stream_id: int, block: bytes) -> None:
        """End the response with a header block, which may be the whole response."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.finish(stream, block)
            self._table.reconcile()

    def reply(self, stream_id: int, block: bytes, body: Sequence[Part], trailers: bytes) -> None:
        """Send a whole response: header block, body, trailers."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.reply(stream, block, body, trailers)
            self._table.reconcile()

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream at once; its queued bytes are dropped."""
        if stream_id in self._streams:
            self._table.reset(stream_id, code)

    def ping(self, payload: bytes) -> None:
        """Send a ping; `payload` has 8 bytes."""
        self._sender.output.append(frames.frame(frames.PING, payload=payload))

    def announce_end(self) -> None:
        """Announce the end of the connection. Streams that are opened before the end are served."""
        last = self._table.refused_from - 1
        self._sender.output.append(frames.goaway(last, ErrorCode.NO_ERROR))

    def end(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: bytes = b"") -> None:
        """Send GOAWAY: only streams that are already open are served."""
        self._table.end(code, reason)

    def pause(self) -> None:
        """Stop producing output: the transport's write buffer is full."""
        self._sender.pause()

    def resume(self) -> None:
        """Produce output again."""
        self._sender.resume()
        self._table.reconcile()

    def lost(self) -> None:
        """Drop all streams and output: the network connection is lost."""
        self._table.clear()
        self._sender.output.clear()
