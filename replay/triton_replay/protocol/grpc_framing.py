"""gRPC's framing: each message has a byte that tells compression, and its length as u32."""

from __future__ import annotations

from collections.abc import Iterator

PREFIX = 5
"""Bytes before each message."""
STREAMING = "/ModelStreamInfer"
"""How the path of a call ends that has a stream of messages each way."""


class MessageSplitter:
    """Finds whole messages in the data of a stream; each with its prefix."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """The messages that are whole with this data."""
        self._buffer += data
        while len(self._buffer) >= PREFIX:
            end = PREFIX + int.from_bytes(self._buffer[1:PREFIX], "big")
            if end > len(self._buffer):
                return
            message = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield message

    @property
    def rest(self) -> int:
        """Bytes of a message that is not whole."""
        return len(self._buffer)
