"""The Protobuf wire format, to walk messages without their definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

LENGTH_DELIMITED: Final = 2
GROUPS: Final[Mapping[int, int]] = {3: 1, 4: -1}
"""The change of the depth at the start and at the end of a group, by wire type."""
_VARINT: Final = 0
_FIXED: Final[Mapping[int, int]] = {1: 8, 5: 4}
"""The bytes of fields of a fixed size, by wire type."""


def fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the number, the whole bytes and the content of each field.

    The content of a number is its varint.

    Raises:
        ValueError: A field is truncated or has an unknown wire type.
        IndexError: A number is truncated.
    """
    start = 0
    while start < len(message):
        number, wire_type, content, end = field_span(message, start)
        if wire_type in GROUPS:
            raise ValueError(f"found a field of wire type {wire_type}, expected 0, 1, 2 or 5")
        if end > len(message):
            raise ValueError("found a truncated field")
        yield number, message[start:end], message[content:end]
        start = end


def field_span(message: memoryview | bytes, start: int) -> tuple[int, int, int, int]:
    """Return the number, wire type, and start and end of the content of the field at `start`.

    The end may be beyond the message. The content of a number is its varint; the start and the end
    of a group have no content.

    Raises:
        ValueError: The field has an unknown wire type.
        IndexError: A number is truncated.
    """
    key, content = _read_varint(message, start)
    wire_type = key & 7
    if wire_type == LENGTH_DELIMITED:
        length, content = _read_varint(message, content)
        return key >> 3, wire_type, content, content + length
    if wire_type == _VARINT:
        return key >> 3, wire_type, content, _read_varint(message, content)[1]
    if wire_type in GROUPS:
        return key >> 3, wire_type, content, content
    if wire_type not in _FIXED:
        raise ValueError(f"found a field of wire type {wire_type}, expected 0, 1, 2 or 5")
    return key >> 3, wire_type, content, content + _FIXED[wire_type]


def _read_varint(message: memoryview | bytes, at: int) -> tuple[int, int]:
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
