"""Protobuf's encoding, as far as messages of others are walked here without their definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

LENGTH_DELIMITED: Final = 2
_VARINT: Final = 0
_FIXED: Final[Mapping[int, int]] = {1: 8, 5: 4}
"""Bytes of the fields of a fixed size, by their kind."""


def fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Number, whole and content of each field; the content of a number is its varint.

    Raises ValueError for a field that is cut off or of no known kind, or IndexError for a number.
    """
    start = 0
    while start < len(message):
        key, content = _read_varint(message, start)
        wire_type = key & 7
        if wire_type == LENGTH_DELIMITED:
            length, content = _read_varint(message, content)
            end = content + length
        elif wire_type == _VARINT:
            end = _read_varint(message, content)[1]
        elif wire_type in _FIXED:
            end = content + _FIXED[wire_type]
        else:
            raise ValueError(f"found a field of kind {wire_type}")
        if end > len(message):
            raise ValueError("found a field that is cut off")
        yield key >> 3, message[start:end], message[content:end]
        start = end


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits to a byte, the lowest first; and where it ends."""
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def varints(content: memoryview) -> Iterator[int]:
    """The numbers of a field, which may be packed one after another."""
    at = 0
    while at < len(content):
        number, at = _read_varint(content, at)
        yield number


def varint(number: int) -> bytes:
    """The number as Protobuf writes it: seven bits to a byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
