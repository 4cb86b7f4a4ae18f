"""Parcels: the tensors of a message. Small ones are in the message, others in shared memory.

A block of shared memory costs a table entry on each side and a report when it is free again. For
few bytes a copy through the socket is faster.
"""

from __future__ import annotations

from typing import Protocol

#: The size limit in bytes of tensors in the message itself. Both sides use it.
SMALL_BYTES = 4096
#: Enough for every element type.
_ALIGNMENT = 8


class Room(Protocol):
    """The shared memory of a connection."""

    def put(self, data: memoryview) -> int:
        """Copy `data` into shared memory; return the offset. Raises ServerError."""

    def free_unsent(self, offsets: list[int]) -> None:
        """Free blocks whose offsets were not sent."""

    def view(self, offset: int, size: int) -> memoryview:
        """Return a writable view of a block. Raises ValueError."""


class Parcel:
    """The tensors of a message to send. `data` holds those in the message."""

    def __init__(self, room: Room) -> None:
        self.data = bytearray()
        self._room = room
        self._blocks: list[int] = []

    def put(self, content: memoryview) -> tuple[int, int]:
        """Add bytes; return their offset and size. Raises ServerError without room."""
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
        """The current position, for `free_unsent`."""
        return len(self._blocks)

    def free_unsent(self, mark: int = 0) -> None:
        """Free the blocks added since `mark`, whose offsets are not sent."""
        self._room.free_unsent(self._blocks[mark:])
        del self._blocks[mark:]


class ReceivedParcel:
    """The tensors of a received message."""

    __slots__ = ("_data", "_room")

    def __init__(self, room: Room, data: bytearray) -> None:
        self._room = room
        self._data = memoryview(data)

    def view(self, offset: int, size: int) -> memoryview:
        """Return a writable view of bytes that `put` has added.

        Raises ValueError if the range is invalid, or if shared memory was viewed before.
        """
        if size > SMALL_BYTES:
            return self._room.view(offset, size)
        if not 0 <= offset <= len(self._data) - size:
            raise ValueError(f"found a tensor at {offset} in a parcel of {len(self._data)} bytes")
        return self._data[offset : offset + size]
