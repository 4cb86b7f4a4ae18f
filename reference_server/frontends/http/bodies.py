"""The body of one HTTP request while it comes: in pieces, or straight to where it will be used."""

from __future__ import annotations

import numpy as np

from reference_server.core.intake import UNCOUNTED, Charge, Intake

#: Where tensor data begins in a body that is received in place, for aligned NumPy views.
_ALIGNMENT = 64


class NoRoom(Exception):
    """There is no memory for a body; the text says why."""


class Body:
    """What has come of a body. `intake` has what long ones hold."""

    __slots__ = ("_buffer", "_charge", "_intake", "_pieces", "received")

    def __init__(self, intake: Intake) -> None:
        self.received = 0
        self._intake = intake
        self._charge: Charge | None = None  # if it is long
        self._pieces: list[bytes] = []
        self._buffer: memoryview | None = None  # if it is received in place

    @property
    def rest(self) -> memoryview | None:
        """Where the next bytes are wanted, if it is received in place."""
        return None if self._buffer is None else self._buffer[self.received :]

    @property
    def lacks(self) -> int:
        """How many bytes are still to come, if it is received in place."""
        return 0 if self._buffer is None else len(self._buffer) - self.received

    @property
    def is_full(self) -> bool:
        """Whether all has come of one that is received in place."""
        return self._buffer is not None and self.received == len(self._buffer)

    def add(self, piece: bytes) -> None:
        """Take the next piece. Raises NoRoom."""
        self._pieces.append(piece)
        self.received += len(piece)
        if self._charge is not None:
            self._count(self._charge, len(piece))
        elif self.received > UNCOUNTED:
            self._charge = self._intake.charge()
            self._count(self._charge, self.received)

    def drop(self, size: int) -> None:
        """So many bytes have come that are not kept, and nor is what came before."""
        self.received += size
        self._pieces.clear()
        self._charge = None

    def place(self, length: int, data_offset: int) -> None:
        """Receive the rest in place, `length` bytes in all, so that byte `data_offset` is aligned.

        Raises NoRoom.
        """
        try:
            memory = np.empty(length + _ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # ValueError: more than any memory can have
            text = f"a request body of {length} bytes does not fit the server's memory"
            raise NoRoom(text) from None
        address = memory.__array_interface__["data"][0]
        start = -(address + data_offset) % _ALIGNMENT
        whole = memory[start : start + length]
        if self._charge is None and length > UNCOUNTED:
            self._charge = self._intake.charge()
            self._count(self._charge, self.received)
        buffer = whole.data if self._charge is None else self._charge.hold(whole)
        filled = 0
        for piece in self._pieces:
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        self._pieces = []
        self._buffer = buffer

    def filled(self, size: int) -> None:
        """So many bytes have come into what `rest` gave last. Raises NoRoom."""
        self.received += size
        if self._charge is not None:
            self._count(self._charge, size)

    def whole(self) -> memoryview:
        """All of it; nothing is kept here."""
        data: bytes | memoryview
        if self._buffer is not None:
            data = self._buffer
        else:
            pieces = self._pieces
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._charge is not None:
                data = self._charge.hold(data)
        self._pieces, self._buffer, self._charge = [], None, None
        return memoryview(data)

    def _count(self, charge: Charge, size: int) -> None:
        if not charge.grow(size):
            raise NoRoom(self._intake.refusal(self.received))
