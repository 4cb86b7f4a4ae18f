"""Frames: how records lie in a capture, so that a torn or changed one is noticed.

A capture is MAGIC, the version as u32, and frames to its end. A frame is a head of four u32, all
little-endian: the lengths of its meta and of its body, both in bytes, the CRC-32 of the head's
lengths, the meta and the body, and zero; then the meta, a JSON object in UTF-8, and the body, bytes
as they were on the wire. Frames are appended whole; what a crash leaves of the last one is not
there for a reader.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from triton_replay.errors import CaptureUnreadable

MAGIC: Final = b"\x89TRCAP\r\n"  # as PNG: no text, and spoilt by what converts line ends
VERSION: Final = 1
MAX_PART: Final = 2**32 - 1
"""Bytes of one meta or body at most."""

_Body = bytes | bytearray | memoryview
_HEAD: Final = struct.Struct("<IIII")
_LENGTHS: Final = struct.Struct("<II")
_PREFACE: Final = MAGIC + VERSION.to_bytes(4, "little")


class Frame(NamedTuple):
    """One frame of a capture; its parts are views into the capture."""

    meta: memoryview
    body: memoryview
    end: int
    """Where the next one begins, in bytes from the capture's beginning."""


class Damage(NamedTuple):
    """Where a capture stops being readable, and why."""

    offset: int
    """Of the first byte that belongs to no whole frame."""
    reason: str


def preface() -> bytes:
    """What a capture begins with."""
    return _PREFACE


def encode_frame(meta: bytes, body: _Body) -> tuple[bytes, _Body]:
    """A frame in two pieces, of which the second is `body` itself: it is not copied."""
    lengths = _LENGTHS.pack(len(meta), len(body))
    checksum = zlib.crc32(body, zlib.crc32(meta, zlib.crc32(lengths)))
    return _HEAD.pack(len(meta), len(body), checksum, 0) + meta, body


def check_preface(data: memoryview, name: str) -> int:
    """Where the first frame begins. Raises CaptureUnreadable for what is no capture."""
    found = bytes(data[: len(_PREFACE)])
    if len(found) < len(_PREFACE) and _PREFACE.startswith(found):
        raise CaptureUnreadable(f"{name}: is empty, or cut off before its first record")
    if not found.startswith(MAGIC):
        raise CaptureUnreadable(
            f"{name}: is no capture: begins with {found[:8]!r}, expected {MAGIC!r}; "
            "`triton-replay record` writes captures"
        )
    version = int.from_bytes(found[len(MAGIC) :], "little")
    if version != VERSION:
        raise CaptureUnreadable(
            f"{name}: is a capture of version {version}, expected version {VERSION}; "
            "read it with the triton-replay that wrote it, or record again"
        )
    return len(_PREFACE)


def frames(data: memoryview, start: int) -> Iterator[Frame | Damage]:
    """All whole frames from `start` on; last, if something is left after them, the damage."""
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
