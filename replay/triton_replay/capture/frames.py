"""Frames of a capture, with checksums that detect truncated and changed records.

A capture consists of MAGIC, the version as u32, and frames. A frame starts with four little-endian
u32: the length of its meta in bytes, the length of its body in bytes, the CRC-32 of the two
lengths, the meta and the body, and zero. The meta follows, a JSON object in UTF-8, and then the
body, the bytes as on the wire. Frames are appended as a whole; readers ignore an incomplete last
frame.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from triton_replay.errors import CaptureUnreadable

MAGIC: Final = b"\x89TRCAP\r\n"  # like PNG's: detects text mode and converted line ends
VERSION: Final = 1

_Body = bytes | bytearray | memoryview
_HEAD: Final = struct.Struct("<IIII")
_LENGTHS: Final = struct.Struct("<II")
_PREFACE: Final = MAGIC + VERSION.to_bytes(4, "little")


class Frame(NamedTuple):
    """A frame. Its parts are views into the capture."""

    meta: memoryview
    body: memoryview
    end: int
    """Offset of the next frame in the capture, in bytes."""


class Damage(NamedTuple):
    """The place where a capture is damaged, and the reason."""

    offset: int
    """Offset of the first byte after the last valid frame."""
    reason: str


def preface() -> bytes:
    """Return the first bytes of a capture."""
    return _PREFACE


def encode_frame(meta: bytes, body: _Body) -> tuple[bytes, _Body]:
    """Encode a frame; return its head with the meta, and `body` itself, which is not copied."""
    lengths = _LENGTHS.pack(len(meta), len(body))
    checksum = zlib.crc32(body, zlib.crc32(meta, zlib.crc32(lengths)))
    return _HEAD.pack(len(meta), len(body), checksum, 0) + meta, body


def check_preface(data: memoryview, name: str) -> int:
    """Check the start of a capture and return the offset of the first frame.

    Raises:
        CaptureUnreadable: The data are not a capture, or have another version.
    """
    found = bytes(data[: len(_PREFACE)])
    if len(found) < len(_PREFACE) and _PREFACE.startswith(found):
        raise CaptureUnreadable(f"{name}: empty, or truncated before its first record")
    if not found.startswith(MAGIC):
        raise CaptureUnreadable(
            f"{name}: not a capture: found {found[:8]!r} at the start, expected {MAGIC!r}. "
            "`triton-replay record` writes captures"
        )
    version = int.from_bytes(found[len(MAGIC) :], "little")
    if version != VERSION:
        raise CaptureUnreadable(
            f"{name}: found capture version {version}, expected {VERSION}. "
            "Use the triton-replay that wrote it, or record again"
        )
    return len(_PREFACE)


def frames(data: memoryview, start: int) -> Iterator[Frame | Damage]:
    """Yield the valid frames from `start` on, and a Damage at the end if bytes are left."""
    offset = start
    while offset < len(data):
        found = _frame_at(data, offset)
        yield found
        if isinstance(found, Damage):
            return
        offset = found.end


def _frame_at(data: memoryview, offset: int) -> Frame | Damage:
    first = offset + _HEAD.size
    if first > len(data):
        return Damage(offset, "the file ends within a record")
    meta_length, body_length, checksum, zero = _HEAD.unpack_from(data, offset)
    last = first + meta_length
    end = last + body_length
    if end > len(data):
        return Damage(offset, "the file ends within a record")
    lengths = data[offset : offset + _LENGTHS.size]
    if zero or checksum != zlib.crc32(data[first:end], zlib.crc32(lengths)):
        return Damage(offset, "the record's checksum is wrong")
    return Frame(data[first:last], data[last:end], end)
