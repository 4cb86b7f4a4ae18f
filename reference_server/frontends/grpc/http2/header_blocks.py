"""Header blocks: HPACK (RFC 7541), decoded by the library `hpack`.

Blocks are encoded without the dynamic table, so a block has the same bytes on every connection, and
is encoded once for all responses.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder, HPACKError, OversizedHeaderListError

from reference_server.frontends.grpc.http2.frames import END_HEADERS, ConnectionFault, ErrorCode

#: Header fields in their order. Equal blocks may be decoded to the identical object.
Fields = tuple[tuple[bytes, bytes], ...]

#: The indexes of whole fields, and of names, in the static table, for responses.
_WHOLE = {(b":status", b"200"): 8}
_NAMES = {b"content-type": 31}
#: Sets the size of the dynamic table to 0. Responses do not use the dynamic table.
EMPTY_TABLE = b"\x20"
#: The largest number of frames in one block. Well-behaved clients fill their frames.
_MAX_PARTS = 17
#: The largest number of table size updates in a block: to the smallest and to the last size
#: (RFC 7541, section 4.2).
_MAX_RESIZES = 2
#: The number of remembered blocks per connection.
_REMEMBERED = 64


class HeaderReader:
    """The decoder of one connection's header blocks.

    A client that repeats its headers sends blocks of references to the dynamic table. While the
    table does not change, such a block has the same meaning, and is decoded once.
    """

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)
        self._known: dict[bytes, Fields] = {}

    def read(self, block: bytes) -> Fields:
        """Decode `block`. Raises ConnectionFault, after which the decoder must not be used."""
        known = self._known.get(block)
        if known is not None:
            return known
        if block and _is_resize(block[0]) and _resizes(block) > _MAX_RESIZES:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "too many table size updates")
        try:
            decoded = self._decoder.decode(block, raw=True)
            fields = tuple((bytes(name), bytes(value)) for name, value in decoded)
        except OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except (HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "malformed header block") from error
        if not _is_references(block) or len(self._known) == _REMEMBERED:
            self._known.clear()
        if _is_references(block):
            self._known[block] = fields
        return fields


class BlockAssembler:
    """Joins HEADERS with the following CONTINUATION frames.

    `stream_id` is the stream of an incomplete block, or 0.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.stream_id = 0
        self._flags = 0
        self._block = bytearray()
        self._parts = 0

    def begin(self, stream_id: int, flags: int, payload: memoryview) -> None:
        """Start an incomplete block."""
        self.stream_id, self._flags = stream_id, flags
        self._block = bytearray(payload)
        self._parts = 1

    def add(self, flags: int, payload: memoryview) -> tuple[int, bytes] | None:
        """Append a part. Return the flags of HEADERS and the block if it is complete.

        Raises:
            ConnectionFault: there is no incomplete block, or it is too long.
        """
        if not self.stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += payload
        self._parts += 1
        if len(self._block) > self._max_bytes or self._parts > _MAX_PARTS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        if not flags & END_HEADERS:
            return None
        self.stream_id = 0
        block, self._block = bytes(self._block), bytearray()
        return self._flags, block


def _is_resize(byte: int) -> bool:
    """Return True if a table size update starts with this byte."""
    return byte & 0xE0 == 0x20


def _resizes(block: bytes) -> int:
    """Return the number of table size updates at the start of the block.

    Counting stops at the first update above `_MAX_RESIZES`.
    """
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
    """Return True if the block has only references to the table, of one byte each."""
    return bool(block) and min(block) >= 0x80 and 0xFF not in block


def write(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a block of these fields; names must be in lower case."""
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
    """Encode a number whose first byte has `bits` bits for it (RFC 7541, section 5.1)."""
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
