"""The streams of one connection: which are open, how they end, and which are not looked at."""

from __future__ import annotations

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.frames import ConnectionFault, ErrorCode
from reference_server.frontends.grpc.http2.sending import Sender
from reference_server.frontends.grpc.http2.streams import Stream

#: Streams that the server gave up, whose late frames are taken without a word.
_REMEMBERED = 4_096
#: Bytes that wait on a stream from which its client may not send more on it.
_BACKLOG_BYTES = 2**22


class StreamTable:
    """The streams that are open, by their numbers.

    `opened` is the last one that the client opened; those from `refused_from` on are not served.
    """

    def __init__(self, sender: Sender) -> None:
        self.open: dict[int, Stream] = {}
        self.opened = 0
        self.refused_from = frames.MAX_31_BITS + 1
        self._sender = sender
        self._withheld: dict[int, Stream] = {}  # those whose clients are held up
        self._abandoned: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<StreamTable {list(self.open.values())}>"

    def check_known(self, stream_id: int) -> None:
        """Raises ConnectionFault if the client has opened no stream of this number."""
        if not stream_id & 1 or stream_id > self.opened:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is idle")

    def is_abandoned(self, stream_id: int) -> bool:
        """True if frames may still come that were sent before the client knew."""
        return stream_id in self._abandoned

    def abandon(self, stream_id: int) -> None:
        """The server looks at the stream no more; its client may not know yet."""
        if len(self._abandoned) == _REMEMBERED:
            del self._abandoned[next(iter(self._abandoned))]
        self._abandoned[stream_id] = None

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Tell the client that the stream has ended at once, whatever waits on it."""
        self._sender.output.append(frames.rst_stream(stream_id, code))
        self.abandon(stream_id)
        stream = self.open.get(stream_id)
        if stream is not None:
            self.forget(stream)

    def forget(self, stream: Stream) -> None:
        """The stream is over on both sides."""
        self._sender.drop(stream)
        self._withheld.pop(stream.id, None)
        del self.open[stream.id]

    def refill(self, stream: Stream) -> None:
        """Let the client send more on this stream, if it takes what it is sent."""
        if stream.is_held or stream.queued_bytes > _BACKLOG_BYTES:
            self._withheld[stream.id] = stream
        elif increment := stream.receive_window.refill():
            self._sender.output.append(frames.window_update(stream.id, increment))

    def reconcile(self) -> None:
        """Follow what was sent: close streams whose responses have ended, let clients go on."""
        ended = self._sender.ended
        while ended:
            stream = ended.pop()
            if stream.remote_ended:
                self.forget(stream)
            else:  # the rest of the request is not wanted (RFC 9113, section 8.1)
                self.reset(stream.id, ErrorCode.NO_ERROR)
        if self._withheld:
            withheld, self._withheld = self._withheld, {}
            for stream in withheld.values():
                self.refill(stream)

    def end(self, code: ErrorCode, reason: bytes) -> None:
        """Tell the client that no stream but those that have begun is served.

        The number that it is told never grows: those above it may be asked for elsewhere already.
        """
        self.refused_from = min(self.refused_from, self.opened + 1)
        self._sender.output.append(frames.goaway(self.refused_from - 1, code, reason))

    def clear(self) -> None:
        """Forget all streams, and what waits on them."""
        for stream in tuple(self.open.values()):
            self.forget(stream)
        self._sender.ended.clear()
