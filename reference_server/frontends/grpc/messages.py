"""gRPC's length-prefixed messages: a flag, the length in four bytes, the message.

A long message is received into a buffer of its full size, so that the tensor at its end is used in
place; bytes that are received elsewhere are copied once. Messages are sent in parts, without
copies.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from reference_server.codecs import bodies
from reference_server.codecs.proto_fields import Data
from reference_server.codecs.proto_wire import Parts
from reference_server.core.backlog import UNCOUNTED, Charge, Intake
from reference_server.frontends.grpc.calls import CallFailed, Status

#: Decompress a message. Raises CallFailed.
Inflate = Callable[[Data], Data]

_PREFIX = struct.Struct(">BI")
_MAX_BYTES = 2**31 - 1
#: The largest alignment of an element type. A message ends with its last tensor, so its end is
#: aligned.
_ALIGNMENT = 64
#: The zlib format for deflate, the gzip format for gzip.
_WINDOW_BITS = {"deflate": zlib.MAX_WBITS, "gzip": zlib.MAX_WBITS | 16}


def framed(message: Parts, encoding: str) -> Parts:
    """Return the prefix and the message, compressed if that makes it shorter."""
    size = sum(map(len, message))
    if encoding != "identity":
        packer = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
        packed = b"".join((*map(packer.compress, message), packer.flush()))
        if len(packed) < size:
            return _PREFIX.pack(True, len(packed)), packed
    return _PREFIX.pack(False, size), *message


def _inflating(encoding: str) -> Inflate:
    broken = CallFailed(
        Status.INTERNAL, f"Unexpected error decompressing data for algorithm {encoding}"
    )

    def inflate(message: Data) -> Data:
        unpacker = zlib.decompressobj(wbits=_WINDOW_BITS[encoding])
        most = min(_MAX_BYTES, bodies.most_bytes(len(message)))
        try:
            plain = bodies.unpack(unpacker, message, most)
        except zlib.error:
            raise broken from None
        except MemoryError:
            text = "the decompressed message does not fit the server's memory"
            raise CallFailed(Status.RESOURCE_EXHAUSTED, text) from None
        if unpacker.eof:
            return plain
        if len(plain) == most:
            raise CallFailed(Status.RESOURCE_EXHAUSTED, _too_large(most + 1, most))
        raise broken

    return inflate


#: Decompression by `grpc-encoding`. With identity, the messages' compressed flags are ignored.
INFLATE: Mapping[str, Inflate | None] = {
    "identity": None,
    "deflate": _inflating("deflate"),
    "gzip": _inflating("gzip"),
}


def _too_large(size: int, most: int = _MAX_BYTES) -> str:
    return f"SERVER: Received message larger than max ({size} vs. {most})"


class Packed(NamedTuple):
    """A compressed message."""

    data: Data
    inflate: Inflate

    def plain(self) -> Data:
        """Return the decompressed message. Raises CallFailed if it is malformed or too large."""
        return self.inflate(self.data)


class MessageReader:
    """The parser of the messages in one request's body."""

    __slots__ = (
        *("_before", "_buffer", "_charge", "_filled"),
        *("_inflate", "_intake", "_is_packed", "_prefix"),
    )

    def __init__(self, inflate: Inflate | None, intake: Intake | None = None) -> None:
        self._inflate = inflate
        self._intake = intake or Intake()
        self._charge: Charge | None = None  # for the incomplete message
        self._prefix = b""  # an incomplete prefix
        self._buffer: memoryview | None = None  # of an incomplete message
        self._filled = 0
        self._before = 0  # bytes of earlier messages that were received in pieces
        self._is_packed = False

    @property
    def gathered(self) -> int | None:
        """The received bytes of messages that come in pieces; None if no message is incomplete."""
        if self._buffer is None and not self._prefix:
            return None
        return self._before + self._filled

    @property
    def missing(self) -> int:
        """The number of missing bytes of the incomplete message."""
        return 0 if self._buffer is None else len(self._buffer) - self._filled

    def buffer(self, size: int) -> memoryview:
        """Return the buffer for the next `size` missing bytes of the incomplete message.

        The caller fills the buffer, and then passes it to `feed`.
        """
        assert self._buffer is not None
        return self._buffer[self._filled : self._filled + size]

    def feed(self, data: memoryview) -> Iterator[Data | Packed]:
        """Yield the messages that `data` completes. Raises CallFailed.

        After an abandoned iteration, the reader must not be used again.
        """
        if self._prefix:
            missing = _PREFIX.size - len(self._prefix)
            self._prefix += bytes(data[:missing])
            if len(self._prefix) < _PREFIX.size:
                return
            data = data[missing:]
            self._begin(*_PREFIX.unpack(self._prefix))
            self._prefix = b""
        if self._buffer is not None:
            piece = data[: len(self._buffer) - self._filled]
            data = data[len(piece) :]
            message = self._gather(self._buffer, piece)
            if message is None:
                return
            yield message
        position, end = 0, len(data)
        while end - position >= _PREFIX.size:
            is_packed, length = _PREFIX.unpack_from(data, position)
            start = position + _PREFIX.size
            position = start + length
            if position > end:
                self._gather(self._begin(is_packed, length), data[start:])
                return
            whole = bytes(data[start:position])
            yield self._packed(whole) if is_packed else whole
        self._prefix = bytes(data[position:])

    def _begin(self, is_packed: int, length: int) -> memoryview:
        """Allocate the buffer of a message that is received in pieces."""
        if length > _MAX_BYTES:
            raise CallFailed(Status.RESOURCE_EXHAUSTED, _too_large(length))
        try:
            # The pages are not touched before bytes arrive: a length alone takes no memory.
            room = np.empty(length + _ALIGNMENT, np.uint8)
        except MemoryError:
            text = f"a message of {length} bytes does not fit the server's memory"
            raise CallFailed(Status.RESOURCE_EXHAUSTED, text) from None
        start = -(room.__array_interface__["data"][0] + length) % _ALIGNMENT
        buffer = room[start : start + length]
        self._charge = None if length <= UNCOUNTED else self._intake.charge()
        self._buffer = buffer.data if self._charge is None else self._charge.hold(buffer)
        self._filled = 0
        self._is_packed = bool(is_packed)
        return self._buffer

    def _gather(self, buffer: memoryview, piece: memoryview) -> Data | Packed | None:
        """Append a piece to a message. Return the message if it is complete."""
        filled = self._filled + len(piece)
        if self._charge is not None and not self._charge.grow(len(piece)):
            raise CallFailed(Status.RESOURCE_EXHAUSTED, self._intake.refusal(len(buffer)))
        buffer[self._filled : filled] = piece  # no copy if received into the buffer
        self._filled = filled
        if filled < len(buffer):
            return None
        self._buffer = self._charge = None
        self._before += filled
        self._filled = 0
        return self._packed(buffer) if self._is_packed else buffer

    def _packed(self, message: Data) -> Data | Packed:
        return message if self._inflate is None else Packed(message, self._inflate)
