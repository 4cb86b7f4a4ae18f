"""HTTP/2 as a bystander sees it: the frames of one direction of a connection, headers decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hpack import HPACKError

from triton_replay.protocol.header_blocks import HeaderBlocks
from triton_replay.protocol.http_bodies import Headers

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client begins with."""

_DATA, _HEADERS, _RST_STREAM, _CONTINUATION = 0, 1, 3, 9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20
_HEAD: Final = 9
_MAX_FRAME: Final = 2**20
_MAX_BLOCK: Final = 2**20


class NotHttp2(Exception):
    """The bytes are no HTTP/2."""


class HeadersEvent(NamedTuple):
    """Headers or trailers of a stream."""

    stream: int
    headers: Headers
    ends: bool


class DataEvent(NamedTuple):
    """Some data of a stream, without padding."""

    stream: int
    data: bytes
    ends: bool


class ResetEvent(NamedTuple):
    """The stream is over."""

    stream: int


Event = HeadersEvent | DataEvent | ResetEvent


class FrameReader:
    """Reads one direction. `feed` raises NotHttp2, and is not to be called again then."""

    def __init__(self, *, from_client: bool) -> None:
        self._buffer = bytearray()
        self._preface = PREFACE if from_client else b""
        self._blocks = HeaderBlocks()
        self._block = bytearray()
        self._block_stream = 0
        self._block_ends = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that are whole with these bytes."""
        buffer = self._buffer
        buffer += data
        if self._preface:
            found = bytes(buffer[: len(self._preface)])
            if not self._preface.startswith(found):
                raise NotHttp2("no preface")
            if len(found) < len(self._preface):
                return
            del buffer[: len(self._preface)]
            self._preface = b""
        offset = 0
        try:
            while len(buffer) - offset >= _HEAD:
                length = int.from_bytes(buffer[offset : offset + 3], "big")
                if length > _MAX_FRAME:
                    raise NotHttp2(f"a frame of {length} bytes")
                end = offset + _HEAD + length
                if end > len(buffer):
                    break
                kind, flags = buffer[offset + 3], buffer[offset + 4]
                stream = int.from_bytes(buffer[offset + 5 : offset + 9], "big") & 0x7FFFFFFF
                payload = bytes(buffer[offset + _HEAD : end])
                offset = end
                yield from self._frame(kind, flags, stream, payload)
        finally:
            del buffer[:offset]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> Iterator[Event]:
        if self._block_stream and kind != _CONTINUATION:
            raise NotHttp2("a frame between headers and their continuation")
        if kind == _DATA:
            yield DataEvent(stream, unpadded(payload, flags), bool(flags & _END_STREAM))
        elif kind == _HEADERS:
            block = unpadded(payload, flags)
            self._block += block[5:] if flags & _PRIORITY else block
            self._block_stream, self._block_ends = stream, bool(flags & _END_STREAM)
            yield from self._headers(flags)
        elif kind == _CONTINUATION:
            if stream != self._block_stream:
                raise NotHttp2("a continuation of nothing")
            self._block += payload
            yield from self._headers(flags)
        elif kind == _RST_STREAM:
            yield ResetEvent(stream)

    def _headers(self, flags: int) -> Iterator[Event]:
        if len(self._block) > _MAX_BLOCK:
            raise NotHttp2("headers of more than a megabyte")
        if not flags & _END_HEADERS:
            return
        try:
            headers = self._blocks.decode(bytes(self._block))
        except HPACKError as error:
            raise NotHttp2(f"headers: {error}") from error
        stream, self._block_stream = self._block_stream, 0
        self._block.clear()
        yield HeadersEvent(stream, headers, self._block_ends)


def unpadded(payload: bytes, flags: int) -> bytes:
    """The payload of a frame of data or headers. Raises NotHttp2."""
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise NotHttp2("more padding than there is")
    return payload[1 : len(payload) - payload[0]]
