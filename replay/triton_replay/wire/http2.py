"""HTTP/2 frames: writing for a client, and reading for an observer of one direction.

RFC 9113 defines the frames and constants, RFC 7541 the header blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from hpack import Decoder, HPACKError

from triton_replay.wire.bodies import Body, Headers

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client."""

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

TABLE_SIZE: Final = 1
MAX_CALLS: Final = 3
INITIAL_WINDOW: Final = 4
MAX_FRAME: Final = 5

HEAD: Final = struct.Struct(">HBBBI")
"""Header of a frame: the length in 16 and 8 bits, the type, the flags, the stream."""
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
OPEN_WINDOW: Final = 2**31 - 1
"""Largest window of flow control; with it, the server never waits for the client."""
LARGEST_FRAME: Final = 2**22
"""Largest DATA frame that `opening` allows, as in gRPC's C library."""

_MAX_BLOCK: Final = 2**20
_MAX_TABLE: Final = 2**24
_MAX_CACHED_BLOCKS: Final = 64
_MAX_CACHED_BLOCK: Final = 512


class NotHttp2(Exception):
    """The bytes are not valid HTTP/2."""


# -- written by a client


def frame(kind: int, flags: int, stream: int, payload: Body = b"") -> bytes:
    """Return one frame."""
    return frame_head(kind, flags, stream, len(payload)) + payload


def frame_head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """Return the header of a frame whose payload has `size` bytes."""
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def opening() -> bytes:
    """Return a client's SETTINGS and WINDOW_UPDATE: the largest windows, and large frames."""
    settings = struct.pack(">HIHI", INITIAL_WINDOW, OPEN_WINDOW, MAX_FRAME, LARGEST_FRAME)
    return frame(SETTINGS, 0, 0, settings) + window_update(0, OPEN_WINDOW - DEFAULT_WINDOW)


def window_update(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame that lets the peer send `size` more bytes."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of a DATA or HEADERS frame without padding.

    Raises:
        NotHttp2: The padding is longer than the payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise NotHttp2("a frame has more padding than payload")
    return payload[1 : len(payload) - payload[0]]


# -- header blocks


class HeaderBlocks:
    """Decodes the header blocks of one direction of a connection, in order.

    Caches blocks that do not depend on the dynamic table, so that repeated blocks are not decoded
    again.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(_MAX_BLOCK)
        # The negotiated size is not known to an observer; a larger table does no harm.
        self._decoder.max_allowed_table_size = _MAX_TABLE
        self._cache: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        """Return the headers of a block; for a cached block, always the same object.

        Raises:
            hpack.HPACKError: The block is invalid.
        """
        known = self._cache.get(block)
        if known is not None:
            return known
        pairs = self._decoder.decode(block, raw=True)
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)
        if _changes_the_table(block):
            self._cache.clear()
        elif len(block) <= _MAX_CACHED_BLOCK and len(self._cache) < _MAX_CACHED_BLOCKS:
            self._cache[block] = headers
        return headers


def _changes_the_table(block: bytes) -> bool:
    """Return whether a valid block adds to the dynamic table or resizes it (RFC 7541, 6)."""
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:  # indexed field
            _, at = _integer(block, at, 7)
        elif first & 0x60:  # literal with incremental indexing, or table size update
            return True
        else:
            index, at = _integer(block, at, 4)
            for _ in range(1 if index else 2):
                length, at = _integer(block, at, 7)
                at += length
    return False


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Read an integer with a prefix of `bits` (RFC 7541, 5.1); return its value and its end."""
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        value += (byte & 0x7F) << shift
        at += 1
        shift += 7
        if not byte & 0x80:
            return value, at


# -- read by an observer


class HeadersEvent(NamedTuple):
    """Headers or trailers of a stream."""

    stream: int
    headers: Headers
    ends: bool


class DataEvent(NamedTuple):
    """Data of a stream, without padding."""

    stream: int
    data: bytes
    ends: bool


class ResetEvent(NamedTuple):
    """The end of a stream by RST_STREAM."""

    stream: int


Event = HeadersEvent | DataEvent | ResetEvent


class FrameReader:
    """Reads one direction of a connection.

    Args:
        from_client: Whether the bytes come from the client, and thus start with a preface.
    """

    def __init__(self, *, from_client: bool) -> None:
        self._buffer = bytearray()
        self._preface = PREFACE if from_client else b""
        self._blocks = HeaderBlocks()
        self._block = bytearray()
        self._block_stream = 0
        self._block_ends = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that are complete with these bytes.

        Raises:
            NotHttp2: The bytes are invalid. The reader must not be used afterwards.
        """
        buffer = self._buffer
        buffer += data
        if self._preface:
            found = bytes(buffer[: len(self._preface)])
            if not self._preface.startswith(found):
                raise NotHttp2("the connection does not start with the preface")
            if len(found) < len(self._preface):
                return
            del buffer[: len(self._preface)]
            self._preface = b""
        offset = 0
        try:
            while len(buffer) - offset >= HEAD.size:
                high, low, kind, flags, stream = HEAD.unpack_from(buffer, offset)
                end = offset + HEAD.size + (high << 8 | low)
                if end > len(buffer):
                    break
                payload = bytes(buffer[offset + HEAD.size : end])
                offset = end
                yield from self._frame(kind, flags, stream & 0x7FFFFFFF, payload)
        finally:
            del buffer[:offset]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if self._block_stream and kind != CONTINUATION:
            raise NotHttp2("a frame between HEADERS and CONTINUATION")
        if kind == DATA:
            yield DataEvent(stream, unpadded(payload, flags), bool(flags & END_STREAM))
        elif kind == HEADERS:
            block = unpadded(payload, flags)
            self._block += block[5:] if flags & PRIORITISED else block
            self._block_stream, self._block_ends = stream, bool(flags & END_STREAM)
            yield from self._headers(flags)
        elif kind == CONTINUATION:
            if stream != self._block_stream:
                raise NotHttp2("CONTINUATION without HEADERS")
            self._block += payload
            yield from self._headers(flags)
        elif kind == RST_STREAM:
            yield ResetEvent(stream)

    def _headers(self, flags: int) -> Iterator[Event]:
        if len(self._block) > _MAX_BLOCK:
            raise NotHttp2("headers of more than 1 MiB")
        if not flags & END_HEADERS:
            return
        try:
            headers = self._blocks.decode(bytes(self._block))
        except HPACKError as error:
            raise NotHttp2(f"headers: {error}") from error
        stream, self._block_stream = self._block_stream, 0
        self._block.clear()
        yield HeadersEvent(stream, headers, self._block_ends)
