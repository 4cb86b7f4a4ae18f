"""The Protobuf wire format, to walk messages without their definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

LENGTH_DELIMITED: Final = 2
_VARINT: Final = 0
_FIXED: Final[Mapping[int, int]] = {1: 8, 5: 4}
"""Wire type: bytes, for fields of a fixed size."""


def fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the number, the whole bytes and the content of each field.

    The content of a number is its varint.

    Raises:
        ValueError: A field is truncated or has an unknown wire type.
        IndexError: A number is truncated.
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
            raise ValueError(f"found a field of wire type {wire_type}, expected 0, 1, 2 or 5")
        if end > len(message):
            raise ValueError("found a truncated field")
        yield key >> 3, message[start:end], message[content:end]
        start = end


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at `at` and the position of its end."""
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def varints(content: memoryview) -> Iterator[int]:
    """Yield the numbers of a field, which may be packed."""
    at = 0
    while at < len(content):
        number, at = _read_varint(content, at)
        yield number


def varint(number: int) -> bytes:
    """Encode a number as a varint: seven bits per byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
