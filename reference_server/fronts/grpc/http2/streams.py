"""Streams (RFC 9113, section 5.1): what both sides may still do on each, and which there are."""

from __future__ import annotations

from collections import deque

from reference_server.fronts.grpc.http2.errors import ConnectionFault, ErrorCode
from reference_server.fronts.grpc.http2.flow import ReceiveWindow

Part = bytes | memoryview
#: Streams that the server gave up, whose late frames are taken without a word.
_REMEMBERED = 4_096


class Stream:
    """A stream that is open, or that its client has ended; when its response ends it is gone.

    It was opened at `opened_s` of the connection's clock, in seconds.

    `send_window` may be below zero, after a change of settings. `queue` has what flow control
    holds back, in order; `trailers` is the block that ends the stream after it, once it is known.
    """

    __slots__ = (
        "id",
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
        self.receive_window = ReceiveWindow(receive_window)
        self.queue: deque[Part] = deque()
        self.queued_bytes = 0
        self.trailers: bytes | None = None
        self.remote_ended = False

    def __repr__(self) -> str:
        state = "client done" if self.remote_ended else "open"
        return f"<Stream {self.id} {state}, {self.queued_bytes} bytes wait>"


class StreamTable:
    """The streams that are open, and which ones were.

    `opened` is the last one that the client opened.
    """

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        self.opened = 0
        self._abandoned: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<StreamTable {list(self.open.values())}>"

    def check_known(self, stream_id: int) -> None:
        """Raises ConnectionFault if the client has opened no stream of this number."""
        if not stream_id & 1 or stream_id > self.opened:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is idle")

    def abandon(self, stream_id: int) -> None:
        """The server looks at the stream no more; its client may not know yet."""
        if len(self._abandoned) == _REMEMBERED:
            del self._abandoned[next(iter(self._abandoned))]
        self._abandoned[stream_id] = None

    def is_abandoned(self, stream_id: int) -> bool:
        """True if frames may still come that were sent before the client knew."""
        return stream_id in self._abandoned
