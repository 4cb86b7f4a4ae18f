"""Header blocks: HPACK (RFC 7541), by the library `hpack` on the way in.

On the way out no table is kept: a block is the same bytes on every connection, for ever, so that
it can be written once and used for all answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder, HPACKError, OversizedHeaderListError

from reference_server.frontends.grpc.http2.frames import END_HEADERS, ConnectionFault, ErrorCode

#: Header fields in their order. Equal blocks may give the very same object.
Fields = tuple[tuple[bytes, bytes], ...]

#: Fields of the static table that stand whole in an answer, and names that do.
_WHOLE = {(b":status", b"200"): 8}
_NAMES = {b"content-type": 31}
#: Says that the table, which is not used, has no bytes.
EMPTY_TABLE = b"\x20"
#: Frames of one block; a good client fills them.
_MAX_PARTS = 17
#: How often a block may change the size of the table: to its least and to its last
#: (RFC 7541, section 4.2).
_MAX_RESIZES = 2
#: Blocks of one connection that are remembered.
_REMEMBERED = 64


class HeaderReader:
    """Reads the header blocks of one connection.

    A client that repeats itself sends blocks of nothing but references to what it has said. While
    the table stays as it is, such a block means the same, and is read once.
    """

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)
        self._known: dict[bytes, Fields] = {}

    def read(self, block: bytes) -> Fields:
        """The fields in `block`. Raises ConnectionFault, after which nothing can be read."""
        known = self._known.get(block)
        if known is not None:
            return known
        if block and _is_resize(block[0]) and _resizes(block) > _MAX_RESIZES:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a table that is resized too often")
        try:
            decoded = self._decoder.decode(block, raw=True)
            fields = tuple((bytes(name), bytes(value)) for name, value in decoded)
        except OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except (HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "not HPACK") from error
        if not _is_references(block) or len(self._known) == _REMEMBERED:
            self._known.clear()
        if _is_references(block):
            self._known[block] = fields
        return fields


class BlockAssembler:
    """Puts HEADERS and the CONTINUATION frames behind it together.

    `stream_id` is that of the block that is under way, 0 while there is none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.stream_id = 0
        self._flags = 0
        self._block = bytearray()
        self._parts = 0

    def begin(self, stream_id: int, flags: int, payload: memoryview) -> None:
        """Take the first part of a block that goes on."""
        self.stream_id, self._flags = stream_id, flags
        self._block = bytearray(payload)
        self._parts = 1

    def add(self, flags: int, payload: memoryview) -> tuple[int, bytes] | None:
        """Take the next part; the flags of HEADERS and the block if it was the last one.

        Raises ConnectionFault if there is no block under way, or if it is too long.
        """
        if not self.stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        self._parts += 1
        if len(self._block) > self._max_bytes or self._parts > _MAX_PARTS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if not flags & END_HEADERS:
            return None
        self.stream_id = 0
        block, self._block = bytes(self._block), bytearray()
        return self._flags, block


def _is_resize(byte: int) -> bool:
    """True if a change of the table's size begins with this byte."""
    return byte & 0xE0 == 0x20


def _resizes(block: bytes) -> int:
    """How many changes of the table's size the block begins with; it stops at too many."""
    count = position = 0
    while position < len(block) and _is_resize(block[position]) and count <= _MAX_RESIZES:
        count += 1
        goes_on = block[position] & 0x1F == 0x1F
        position += 1
        while goes_on and position < len(block):
            goes_on = block[position] >= 0x80
            position += 1
    return count


def _is_references(block: bytes) -> bool:
    """True if the block only refers to the table: each byte is one reference."""
    return bool(block) and min(block) >= 0x80 and 0xFF not in block


def write(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block of these fields, whose names are in lower case."""
    return b"".join(_field(name, value) for name, value in fields)


def _field(name: bytes, value: bytes) -> bytes:
    whole = _WHOLE.get((name, value))
    if whole is not None:
        return bytes([0x80 | whole])
    known = _NAMES.get(name)
    if known is not None:
        return _integer(known, 4) + _string(value)
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7) + text


def _integer(value: int, bits: int) -> bytes:
    """A number whose first byte has `bits` bits for it (RFC 7541, section 5.1)."""
    largest = (1 << bits) - 1
    if value < largest:
        return bytes([value])
    encoded = bytearray([largest])
    value -= largest
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
