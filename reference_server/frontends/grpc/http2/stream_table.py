"""The streams of one connection: open, ended and abandoned ones."""

from __future__ import annotations

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.frames import ConnectionFault, ErrorCode
from reference_server.frontends.grpc.http2.sending import Sender, Stream

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
        """Return True if late frames of the stream are to be ignored."""
        return stream_id in self._abandoned

    def abandon(self, stream_id: int) -> None:
        """Ignore further frames of the stream: its client may not know yet that it has ended."""
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
        """After sending: remove streams whose responses have ended, refill windows that waited."""
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

        The announced stream number never grows: the client may already have repeated requests above
        it elsewhere.
        """
        self.refused_from = min(self.refused_from, self.opened + 1)
        self._sender.output.append(frames.goaway(self.refused_from - 1, code, reason))

    def clear(self) -> None:
        """Remove all streams with their queued bytes."""
        for stream in tuple(self.open.values()):
            self.forget(stream)
        self._sender.ended.clear()
