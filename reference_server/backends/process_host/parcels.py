"""The tensors that go along with a message: small ones in it, others in the shared memory.

A block of the shared memory costs an entry in a table on either side and a word when it is free
again; a few bytes are copied through the socket in less time.
"""

from __future__ import annotations

from typing import Protocol

#: The largest tensor that goes in the message itself, in bytes. Both sides know it.
SMALL_BYTES = 4096
#: No element type needs more.
_ALIGNMENT = 8


class Room(Protocol):
    """The shared memory of a connection."""

    def put(self, data: memoryview) -> int:
        """Copy `data` to where the other side can see it: its offset. Raises ServerError."""

    def take_back(self, offsets: list[int]) -> None:
        """Free blocks of which the other side was never told."""

    def view(self, offset: int, size: int) -> memoryview:
        """What the other side has put there; it may be written to. Raises ValueError."""


class Parcel:
    """The tensors of one message that is to be sent. `data` are those in the message."""

    def __init__(self, room: Room) -> None:
        self.data = bytearray()
        self._room = room
        self._blocks: list[int] = []

    def put(self, content: memoryview) -> tuple[int, int]:
        """Take in flat bytes: where they are, and their size. Raises ServerError without room."""
        size = len(content)
        if size > SMALL_BYTES:
            offset = self._room.put(content)
            self._blocks.append(offset)
            return offset, size
        data = self.data
        offset = len(data)
        data += content
        if unaligned := size % _ALIGNMENT:
            data += bytes(_ALIGNMENT - unaligned)
        return offset, size

    @property
    def mark(self) -> int:
        """Where `take_back` may go back to."""
        return len(self._blocks)

    def take_back(self, mark: int = 0) -> None:
        """Free the blocks that were taken since `mark`: the other side is never told of them."""
        self._room.take_back(self._blocks[mark:])
        del self._blocks[mark:]


class ReceivedParcel:
    """The tensors of one message that has come."""

    __slots__ = ("_data", "_room")

    def __init__(self, room: Room, data: bytearray) -> None:
        self._room = room
        self._data = memoryview(data)

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes that `put` took in; they may be written to.

        Raises ValueError if there are none, or if they were viewed before in the shared memory.
        """
        if size > SMALL_BYTES:
            return self._room.view(offset, size)
        if not 0 <= offset <= len(self._data) - size:
            raise ValueError(f"found a tensor at {offset} of a message's {len(self._data)} bytes")
        return self._data[offset : offset + size]
