"""HTTP/2 frames (RFC 9113, sections 4, 6 and 7): parsing, writing, and error codes.

The receiver interprets the frames, with two exceptions. The payload of DATA is passed on as it is
received, so that a long message is not copied twice. SETTINGS are parsed here, next to the settings
of the server.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0x0, 0x1, 0x2, 0x3, 0x4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0x5, 0x6, 0x7, 0x8, 0x9

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES = 9
#: A stream's number and a window's increment have 31 bits; the highest bit is ignored.
MAX_31_BITS = 2**31 - 1

_FRAME_HEADER = struct.Struct(">HBBBI")  # length (16 + 8 bits), type, flags, stream
_UINT32 = struct.Struct(">I")
_PRIORITY_BYTES = 5
_NOTHING = memoryview(b"")

#: Type, flags, stream and payload. An unpadded DATA frame may have several pieces, of which only
#: the last has END_STREAM.
Frame = tuple[int, int, int, memoryview]


# -- errors of the peer, with their codes (RFC 9113, section 7)


class ErrorCode(enum.IntEnum):
    """The reason why a stream or a connection ends."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):
    """An error of the peer that ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class StreamFault(Exception):
    """An error of the peer that ends one stream."""

    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__(f"stream {stream_id}: {code.name}")
        self.stream_id = stream_id
        self.code = code


# -- frames


def frame_header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return the header of a frame with a payload of `length` bytes."""
    return _FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_header(kind, flags, stream_id, len(payload)) + payload


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return a frame that ends a stream early."""
    return frame(RST_STREAM, 0, stream_id, _UINT32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a frame that grants `increment` bytes on a stream; on stream 0, on the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(increment))


def goaway(last_stream_id: int, code: int, reason: bytes = b"") -> bytes:
    """Return a frame that ends the connection. Streams after `last_stream_id` are not served."""
    payload = _UINT32.pack(last_stream_id) + _UINT32.pack(code) + reason
    return frame(GOAWAY, payload=payload)


def uint32(payload: memoryview) -> int:
    """Parse a payload of four bytes. Raises ConnectionFault if it has another length."""
    if len(payload) != _UINT32.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "payload must have 4 bytes")
    number: int = _UINT32.unpack(payload)[0]
    return number


def without_padding(flags: int, payload: memoryview) -> memoryview:
    """Return the payload without its padding. Raises ConnectionFault."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded frame without padding length")
    end = len(payload) - payload[0]
    if end < 1:  # RFC 9113, section 6.1
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than the frame")
    return payload[1:end]


def without_priority(flags: int, stream_id: int, payload: memoryview) -> memoryview:
    """Return the payload of HEADERS without the priority. Raises ConnectionFault."""
    if not flags & PRIORITISED:
        return payload
    if len(payload) < _PRIORITY_BYTES:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for a priority")
    # Checked and ignored: RFC 9113 deprecates priorities (section 5.3.2).
    if _UINT32.unpack_from(payload)[0] & MAX_31_BITS == stream_id:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "stream depends on itself")
    return payload[_PRIORITY_BYTES:]


#: The largest number and total size of complete frames that are handled between two reads of the
#: clock. They are enough for eight unary calls.
_MOST_WHOLE_FRAMES = 16
_MOST_WHOLE_BYTES = 1 << 11


class FrameReader:
    """Splits received bytes into frames; frames may be split anywhere.

    DATA frames have at most `max_frame` bytes, other frames at most `max_control`. Payloads are
    views of the fed bytes, or of separate memory.
    """

    def __init__(self, max_frame: int, max_control: int) -> None:
        self._max_frame = max_frame
        self._max_control = max_control
        self._preface = PREFACE  # bytes of the preface that have not arrived
        self._pending = bytearray()  # an incomplete frame
        self._needed = FRAME_HEADER_BYTES  # `_pending` is parsed at this size
        self._data: tuple[int, int] = (0, 0)  # flags and stream of the incomplete DATA
        self._data_left = 0

    @property
    def unfinished_data(self) -> tuple[int, int]:
        """The stream of an incomplete DATA frame, and the number of its missing bytes."""
        return self._data[1], self._data_left

    def whole(self, data: memoryview) -> int:
        """Return the size of the short, complete frames at the start of `data`, which is fed next.

        The rest of an incomplete DATA frame counts as a frame. Returns 0 if there are no such
        frames, or if a long frame comes first.
        """
        if self._preface or self._pending:
            return 0
        end = min(len(data), _MOST_WHOLE_BYTES)
        whole, position = 0, self._data_left
        for _ in range(_MOST_WHOLE_FRAMES + 1):
            if position > end:
                break
            whole = position
            if end - position < FRAME_HEADER_BYTES:
                break
            high, low, *_ = _FRAME_HEADER.unpack_from(data, position)
            length = high << 8 | low
            if length > _MOST_WHOLE_BYTES:
                return 0
            position += FRAME_HEADER_BYTES + length
        return whole

    def feed(self, data: memoryview) -> Iterator[Frame]:
        """Yield the frames that `data` completes; must be exhausted. Raises ConnectionFault."""
        if self._preface:
            data = self._after_preface(data)
        if self._pending:
            data = self._after_pending(data)
        if not data:
            return
        end = len(data)
        position = 0
        if self._data_left:
            position = min(self._data_left, end)
            yield self._piece(data[:position])
        while end - position >= FRAME_HEADER_BYTES:
            high, low, kind, flags, stream_id = _FRAME_HEADER.unpack_from(data, position)
            length = high << 8 | low
            if length > self._max_control:
                self._check_length(kind, length)
            start = position + FRAME_HEADER_BYTES
            position = start + length
            if position <= end:
                yield kind, flags, stream_id & MAX_31_BITS, data[start:position]
            elif (
                kind == DATA and not flags & PADDED
            ):  # padding is removed from complete payloads only
                self._data = flags, stream_id & MAX_31_BITS
                self._data_left = length
                if start < end:
                    yield self._piece(data[start:])
                return
            else:
                position = start - FRAME_HEADER_BYTES
                self._needed = FRAME_HEADER_BYTES + length
                break
        else:
            self._needed = FRAME_HEADER_BYTES
        self._pending += data[position:]

    def _piece(self, payload: memoryview) -> Frame:
        self._data_left -= len(payload)
        flags, stream_id = self._data
        return DATA, flags & ~END_STREAM if self._data_left else flags, stream_id, payload

    def _check_length(self, kind: int, length: int) -> None:
        if length > self._max_frame:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
        if kind != DATA:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"frame of type {kind} with {length} bytes"
            )

    def _after_preface(self, data: memoryview) -> memoryview:
        """Check the preface, which must come first. Return the bytes after it."""
        found = bytes(data[: len(self._preface)])
        if not self._preface.startswith(found):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface = self._preface[len(found) :]
        return data[len(found) :]

    def _after_pending(self, data: memoryview) -> memoryview:
        """Append `data` to the pending frame and return both.

        Returns nothing while both together are too short to parse.
        """
        self._pending += data
        if len(self._pending) < self._needed:
            return _NOTHING
        joined, self._pending = self._pending, bytearray()
        return memoryview(joined)


# -- SETTINGS (RFC 9113, section 6.5) of the client and of the server

_PAIR = struct.Struct(">HI")
#: The values before any settings.
INITIAL_WINDOW = 65_535
INITIAL_MAX_FRAME = 16_384
INITIAL_TABLE_SIZE = 4_096
_LARGEST_MAX_FRAME = 2**24 - 1


class Setting(enum.IntEnum):
    """The settings that are used here, by their numbers."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits for one connection; sizes in bytes.

    `max_header_list` is announced to clients. A block that has, or decodes to, more than twice that
    size ends the connection. `max_unread` limits output that flow control does not hold back, such
    as acknowledgements, while the client does not read.
    """

    max_streams: int = 4_096
    max_frame: int = 2**20
    stream_window: int = 2**22
    connection_window: int = 2**24
    max_header_list: int = 2**15
    max_unread: int = 2**20

    @property
    def max_header_block(self) -> int:
        """The size of the longest header block that is decoded."""
        return 2 * self.max_header_list

    def opening(self) -> bytes:
        """Return the server's first frames: its settings, and the connection's window."""
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: self.max_streams,
            Setting.INITIAL_WINDOW_SIZE: self.stream_window,
            Setting.MAX_FRAME_SIZE: self.max_frame,
            Setting.MAX_HEADER_LIST_SIZE: self.max_header_list,
        }
        payload = b"".join(_PAIR.pack(*pair) for pair in settings.items())
        wider = self.connection_window - INITIAL_WINDOW
        return frame(SETTINGS, payload=payload) + window_update(0, wider)


def parse_settings(payload: memoryview) -> dict[int, int]:
    """Parse a SETTINGS frame; of repeated settings, the last is used. Raises ConnectionFault."""
    if len(payload) % _PAIR.size:
        raise ConnectionFault(
            ErrorCode.FRAME_SIZE_ERROR, "SETTINGS payload must be a multiple of 6 bytes"
        )
    found = dict(_PAIR.iter_unpack(payload))
    if found.get(Setting.ENABLE_PUSH, 0) > 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
    if found.get(Setting.INITIAL_WINDOW_SIZE, 0) > MAX_31_BITS:
        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE exceeds 2^31-1")
    max_frame = found.get(Setting.MAX_FRAME_SIZE, INITIAL_MAX_FRAME)
    if not INITIAL_MAX_FRAME <= max_frame <= _LARGEST_MAX_FRAME:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {max_frame}")
    return found
