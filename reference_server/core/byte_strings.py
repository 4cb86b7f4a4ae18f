# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""The wire format of BYTES tensors. An element is a little-endian uint32 length and the bytes.

Cython compiles this file if there is a C compiler; `byte_strings.pxd` has the C types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_server.core import gil

Objects = npt.NDArray[np.object_]

_LENGTH = struct.Struct("<I")


def element_bytes(element: object) -> bytes:
    """Return an element as Triton stores it: bytes unchanged, other values as `str` in UTF-8."""
    # Subclasses, such as np.bytes_, are copied to plain bytes.
    if type(element) is bytes:
        return element
    return bytes(element) if isinstance(element, bytes) else str(element).encode()


def serialize(array: npt.NDArray[np.generic], subclass: Callable[[], None] | None = None) -> bytes:
    """Return the wire format of an object or `S<n>` array, in C order.

    `subclass` is called if an element is of a subclass of `bytes`; it may raise.
    """
    flat = array.ravel()
    slices: list[bytes] = []
    for start in range(0, max(1, flat.size), gil.SLICE):
        if start:
            gil.yield_gil()
        elements = flat[start : start + gil.SLICE].tolist()
        wire = pack(elements)
        slices.append(_packed(elements, subclass) if wire is None else wire)
    return slices[0] if len(slices) == 1 else b"".join(slices)


def _packed(elements: list[object], subclass: Callable[[], None] | None) -> bytes:
    """Return the wire format of elements of any type."""
    parts: list[bytes] = []
    for element in elements:
        if type(element) is bytes:
            encoded = element
        elif isinstance(element, bytes):
            if subclass is not None:
                subclass()
                subclass = None  # once is enough
            encoded = bytes(element)
        else:
            encoded = str(element).encode()
        parts.append(_LENGTH.pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def byte_size(array: npt.NDArray[np.generic]) -> int:
    """Return the length of `serialize(array)` without building it."""
    return sum(4 + len(element_bytes(element)) for element in array.ravel().tolist())


class Malformed(ValueError):
    """Raised for bytes that are not a sequence of length-prefixed strings.

    Attributes:
        elements: The number of complete elements.
        available: The number of remaining bytes.
        length: The length of the truncated element; None if the four-byte length is truncated.
    """

    def __init__(self, elements: int, available: int, length: int | None) -> None:
        super().__init__(
            f"found {available} bytes after {elements} elements; expected a four-byte length and "
            "as many bytes"
        )
        self.elements = elements
        self.available = available
        self.length = length


#: Elements that are counted before other threads may run: about 50 microseconds of work.
_COUNTED = 1 << 9


def count(raw: memoryview) -> int:
    """Return the number of elements in `raw`, without making them. Raises Malformed."""
    length_at = _LENGTH.unpack_from
    end = len(raw)
    elements = position = 0
    while position < end:
        if end - position < 4:
            raise Malformed(elements, end - position, None)
        (length,) = length_at(raw, position)
        position += 4
        if end - position < length:
            raise Malformed(elements, end - position, length)
        position += length
        elements += 1
        if not elements % _COUNTED:
            gil.yield_gil()
    return elements


def split(raw: memoryview) -> list[bytes]:
    """Return the elements in `raw`. Raises Malformed if the last one is truncated."""
    elements: list[bytes] = []
    length_at = _LENGTH.unpack_from
    data = bytes(raw)  # elements are slices; slices of the view would keep the whole body alive
    end = len(data)
    position = _unpacked(data, elements)
    while position < end:
        if end - position < 4:
            raise Malformed(len(elements), end - position, None)
        (length,) = length_at(data, position)
        position += 4
        if end - position < length:
            raise Malformed(len(elements), end - position, length)
        elements.append(data[position : position + length])
        position += length
    return elements


def _unpacked(data: bytes, elements: list[bytes]) -> int:
    """Append the complete elements of `data` to `elements`; return the position after them."""
    position, end = 0, len(data)
    while True:
        found = len(elements)
        position = unpack(data, end, position, gil.SLICE, elements)
        if position == end or len(elements) - found < gil.SLICE:
            return position
        gil.yield_gil()


def as_array(elements: Sequence[bytes], shape: tuple[int, ...]) -> Objects:
    """Return the elements as an object array of `shape`, which must have as many elements."""
    # np.array(elements) would make fixed-width strings, which lose trailing zeros.
    array = np.empty(len(elements), dtype=np.object_)
    start = 0
    for some in gil.slices(elements):
        array[start : start + len(some)] = some
        start += len(some)
    return array.reshape(shape)


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


# When this file is compiled, all names below are C variables and functions.


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
