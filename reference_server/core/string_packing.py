# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Packs byte strings to the wire form of a BYTES tensor, and unpacks them.

Cython compiles this file where a C compiler is; `string_packing.pxd` has the C types.
"""

from __future__ import annotations

from typing import Any


def pack(elements: list[Any]) -> bytes | None:
    """Return the wire format of `bytes` elements; None if an element has another type."""
    size = 0
    for element in elements:
        if type(element) is not bytes:
            return None
        size += 4 + len(element)
    wire = bytearray(size)
    _pack(elements, wire)
    return bytes(wire)


def unpack(wire: bytes, size: int, position: int, most: int, elements: list[bytes]) -> int:
    """Append up to `most` strings to `elements`; return the position after the last one.

    Args:
        wire: The bytes.
        size: The number of bytes in `wire`.
        position: The position of the first string.
        most: The largest number of strings.
        elements: The list to append to. A truncated string is not appended.
    """
    for _ in range(most):
        if size - position < 4:
            break
        length = wire[position + 3]
        length = length << 8 | wire[position + 2]
        length = length << 8 | wire[position + 1]
        length = length << 8 | wire[position]
        start = position + 4
        if length > size - start:
            break
        position = start + length
        elements.append(wire[start:position])
    return position


# Compiled, all names below are C variables and functions.


def _pack(elements: list[bytes], wire: bytearray) -> None:
    """Write the elements one after another."""
    position = 0
    for element in elements:
        length = len(element)
        text = element
        for place in range(4):
            wire[position + place] = length >> 8 * place & 255
        position += 4
        for place in range(length):
            wire[position + place] = text[place]
        position += length
