"""SETTINGS (RFC 9113, section 6.5): what the client wants, and what it is told."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from reference_server.frontends.grpc.http2 import frames
from reference_server.frontends.grpc.http2.errors import ConnectionFault, ErrorCode

_PAIR = struct.Struct(">HI")
#: What holds before anybody has said anything.
INITIAL_WINDOW = 65_535
INITIAL_MAX_FRAME = 16_384
INITIAL_TABLE_SIZE = 4_096
_LARGEST_MAX_FRAME = 2**24 - 1


class Setting(enum.IntEnum):
    """The settings that mean something here, by their numbers."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server grants one connection; sizes in bytes.

    `max_header_list` is what clients are told. Twice that in one block, or as much as that again
    when it is unpacked, ends the connection: by then nobody reads it. `max_unread` is for what
    flow control does not hold back: acknowledgements and the like that a client does not read.
    """

    max_streams: int = 4_096
    max_frame: int = 2**20
    stream_window: int = 2**22
    connection_window: int = 2**24
    max_header_list: int = 2**15
    max_unread: int = 2**20

    @property
    def max_header_block(self) -> int:
        """The longest header block that is read at all."""
        return 2 * self.max_header_list

    def opening(self) -> bytes:
        """What the server says first: its settings, and the window of the connection."""
        told = {
            Setting.MAX_CONCURRENT_STREAMS: self.max_streams,
            Setting.INITIAL_WINDOW_SIZE: self.stream_window,
            Setting.MAX_FRAME_SIZE: self.max_frame,
            Setting.MAX_HEADER_LIST_SIZE: self.max_header_list,
        }
        payload = b"".join(_PAIR.pack(*pair) for pair in told.items())
        wider = self.connection_window - INITIAL_WINDOW
        return frames.frame(frames.SETTINGS, payload=payload) + frames.window_update(0, wider)


def parse(payload: memoryview) -> dict[int, int]:
    """The settings in a SETTINGS frame; of equal ones the last. Raises ConnectionFault."""
    if len(payload) % _PAIR.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a broken length")
    found = dict(_PAIR.iter_unpack(payload))
    if found.get(Setting.ENABLE_PUSH, 0) > 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
    if found.get(Setting.INITIAL_WINDOW_SIZE, 0) > frames.MAX_31_BITS:
        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE of 32 bits")
    max_frame = found.get(Setting.MAX_FRAME_SIZE, INITIAL_MAX_FRAME)
    if not INITIAL_MAX_FRAME <= max_frame <= _LARGEST_MAX_FRAME:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {max_frame}")
    return found
