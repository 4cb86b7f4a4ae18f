"""Flow control on the way in (RFC 9113, section 5.2): how much more a client may send."""

from __future__ import annotations


class ReceiveWindow:
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
