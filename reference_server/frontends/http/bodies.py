"""The body of one HTTP request while it is received: in pieces, or into its final memory."""

from __future__ import annotations

import numpy as np

from reference_server.core.intake import UNCOUNTED, Charge, Intake

#: Alignment in bytes of the tensor data in a body that is received in place, for NumPy.
_ALIGNMENT = 64


class RequestRejected(Exception):
    """A request that is answered with status 400; the text is the answer's."""


class Body:
    """The received part of a body. A long body is charged to the memory budget `intake`."""

    __slots__ = ("_buffer", "_charge", "_intake", "_pieces", "chunks", "received")

    def __init__(self, intake: Intake) -> None:
        self.received = 0  # bytes
        self.chunks = 0  # whose headers were received, with transfer-encoding: chunked
        self._intake = intake
        self._charge: Charge | None = None  # for a long body
        self._pieces: list[bytes] = []
        self._buffer: memoryview | None = None  # for a body received in place

    @property
    def rest(self) -> memoryview | None:
        """The memory for the missing bytes of a body that is received in place, else None."""
        return None if self._buffer is None else self._buffer[self.received :]

    @property
    def missing(self) -> int:
        """The number of missing bytes of a body that is received in place, else 0."""
        return 0 if self._buffer is None else len(self._buffer) - self.received

    @property
    def is_full(self) -> bool:
        """True if the body is received in place and complete."""
        return self._buffer is not None and self.received == len(self._buffer)

    def add(self, piece: bytes) -> None:
        """Append a piece. Raises RequestRejected if the memory budget is exhausted."""
        self._pieces.append(piece)
        self.received += len(piece)
        if self._charge is not None:
            self._count(self._charge, len(piece))
        elif self.received > UNCOUNTED:
            self._charge = self._intake.charge()
            self._count(self._charge, self.received)

    def drop(self, size: int) -> None:
        """Count bytes that are not kept, and release those received before."""
        self.received += size
        self._pieces.clear()
        self._charge = None

    def place(self, length: int, data_offset: int) -> None:
        """Allocate memory for the whole body, into which the missing bytes are received.

        Args:
            length: the size of the body in bytes.
            data_offset: the offset of the byte that is aligned for NumPy.

        Raises:
            RequestRejected: the memory cannot be allocated, or the memory budget is exhausted.
        """
        try:
            memory = np.empty(length + _ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # ValueError: more than any memory can have
            text = f"a request body of {length} bytes does not fit the server's memory"
            raise RequestRejected(text) from None
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
        """Count bytes received into `rest`. Raises RequestRejected: memory budget exhausted."""
        self.received += size
        if self._charge is not None:
            self._count(self._charge, size)

    def whole(self) -> memoryview:
        """Return the received bytes, and release them here."""
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
            raise RequestRejected(self._intake.refusal(self.received))
