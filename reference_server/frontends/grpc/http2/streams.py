"""One stream (RFC 9113, section 5.1) and flow-control windows (section 5.2)."""

from __future__ import annotations

from collections import deque

Part = bytes | memoryview


class Stream:
    """A stream until its response ends.

    `opened_s` is the time of its opening, in seconds of the connection's clock. `send_window` may
    be negative after a change of settings. `queue` has the bytes that flow control holds back, in
    order; `trailers` is the block that ends the stream after them, once it is known. With `is_held`
    the client gets no further window.
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
