"""One connection of HTTP/2, the server's side: joins what the other modules do.

    events = connection.receive(data, now_s)     what the client did
    connection.reply(stream_id, ...)             what the server says
    parts = connection.take_output()             the bytes to send, in order

Nothing here blocks, and nothing is raised for what a client does: faults are answered as
RFC 9113 says, and told as events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.frames import ErrorCode, Limits
from reference_server.frontends.grpc.http2.receiving import Event, Receiver
from reference_server.frontends.grpc.http2.sending import Sender
from reference_server.frontends.grpc.http2.stream_table import StreamTable
from reference_server.frontends.grpc.http2.streams import Part


class Http2Connection:
    """A connection, from its first byte. All times are of one clock, in seconds."""

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
        """How many streams are open, or half closed."""
        return len(self._streams)

    @property
    def is_greeted(self) -> bool:
        """Whether the client has begun as HTTP/2 begins: with its preface and its settings."""
        return self._receiver.is_greeted

    @property
    def opened(self) -> int:
        """The number of the last stream that the client opened."""
        return self._table.opened

    @property
    def unfinished_block(self) -> int:
        """The stream of the header block of which a part has come; 0 if there is none."""
        return self._receiver.unfinished_block

    @property
    def answered_bytes(self) -> int:
        """How many bytes wait for the client of responses that are complete."""
        return self._sender.answered_bytes

    def unread(self) -> Iterator[tuple[int, int]]:
        """The streams on which something waits for the client, and how many bytes."""
        for stream in self._streams.values():
            if stream.queue:
                yield stream.id, stream.queued_bytes

    # -- bytes

    def receive(self, data: memoryview, now_s: float) -> list[Event]:
        """What the client did, in order. `data` may end anywhere."""
        return self._receiver.receive(data, now_s)

    @property
    def data_under_way(self) -> tuple[int, int]:
        """The stream of the DATA frame of which a part has come, and how many bytes it lacks."""
        return self._receiver.data_under_way

    def whole(self, data: memoryview) -> int:
        """How many bytes at its start are some whole frames, which are short; 0 if none are."""
        return self._receiver.whole(data)

    def take_output(self) -> list[Part]:
        """The bytes to send now."""
        return self._sender.take()

    def take_moved(self) -> Sequence[tuple[int, int]]:
        """The streams of which waiting bytes have been sent since, and how many wait still."""
        moved = self._sender.moved
        if not moved:
            return ()
        found = [(stream.id, stream.queued_bytes) for stream in moved.values()]
        moved.clear()
        return found

    # -- what the server says

    def headers(self, stream_id: int, block: bytes) -> None:
        """Begin a response. Here and below nothing is said on a stream that is gone."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._sender.headers(stream, block)

    def data(self, stream_id: int, *parts: Part) -> int:
        """Send a piece of the response's body; `parts` must not change any more.

        Returns how many bytes of the body wait for the client.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        self._sender.data(stream, parts)
        return stream.queued_bytes

    def hold(self, stream_id: int, *, held: bool) -> None:
        """Let the client send no more on a stream than it may already, or let it go on."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.is_held = held
            self._table.reconcile()

    def hold_all(self, *, held: bool) -> None:
        """The same of all streams together."""
        self._receiver.hold(held=held)

    def finish(self, stream_id: int, block: bytes) -> None:
        """End the response with this block, which may be all of it."""
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
        """End a stream at once, whatever waits on it."""
        if stream_id in self._streams:
            self._table.reset(stream_id, code)

    def ping(self, payload: bytes) -> None:
        """Ask for a sign of life; `payload` has 8 bytes."""
        self._sender.output.append(frames.frame(frames.PING, payload=payload))

    def announce_end(self) -> None:
        """Say that the connection will end. Streams that the client opens meanwhile are served."""
        last = self._table.refused_from - 1
        self._sender.output.append(frames.goaway(last, ErrorCode.NO_ERROR))

    def end(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: bytes = b"") -> None:
        """Say that no stream but those that have begun is served."""
        self._table.end(code, reason)

    def pause(self) -> None:
        """Hold responses back: the transport has enough to send."""
        self._sender.pause()

    def resume(self) -> None:
        """Send responses on."""
        self._sender.resume()
        self._table.reconcile()

    def lost(self) -> None:
        """The network's connection is gone: let go of all that waits for it."""
        self._table.clear()
        self._sender.output.clear()
