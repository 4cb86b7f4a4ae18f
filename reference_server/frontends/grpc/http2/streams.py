"""One stream (RFC 9113, section 5.1), and the windows that hold clients back (section 5.2)."""

from __future__ import annotations

from collections import deque

Part = bytes | memoryview


class Stream:
    """A stream that is open, or that its client has ended; when its response ends it is gone.

    It was opened at `opened_s` of the connection's clock, in seconds.

    `send_window` may be below zero, after a change of settings. `queue` has what flow control
    holds back, in order; `trailers` is the block that ends the stream after it, once it is known.
    With `is_held` its client may send no more than it was allowed already.
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
    """The window of a stream, or of a connection, which is refilled when half of it is used.

    What arrives is used at once; to hold a client up, the refill is put off.
    """

    __slots__ = ("_left", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size

    def take(self, size: int) -> bool:
        """Count `size` bytes that arrived; False if they were not allowed."""
        self._left -= size
        return self._left >= 0

    def refill(self) -> int:
        """How many bytes to allow now; 0 while the window is wide."""
        used = self._size - self._left
        if used < self._size // 2:
            return 0
        self._left = self._size
        return used
