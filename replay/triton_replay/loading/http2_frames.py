"""HTTP/2 as a client writes it: frames, and how they are named."""

from __future__ import annotations

import struct
from typing import Final

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4),
    *(6, 7, 8, 9),
)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITISED = 0x4, 0x8, 0x20
HEAD: Final = struct.Struct(">HBBBI")
"""Of a frame: the length as 16 and 8 bits, the kind, flags, the stream."""
TABLE_SIZE, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 1, 3, 4, 5
"""Settings."""
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
OPEN_WINDOW: Final = 2**31 - 1
"""The largest there is: what comes is never held up."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def opening() -> bytes:
    """What a client sends first, behind the preface: windows as large as can be."""
    settings = struct.pack(">HI", INITIAL_WINDOW, OPEN_WINDOW)
    return frame(SETTINGS, 0, 0, settings) + window_update(0, OPEN_WINDOW - DEFAULT_WINDOW)


def window_update(stream: int, size: int) -> bytes:
    """Let the other side send so many bytes more."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))
