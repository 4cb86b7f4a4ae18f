"""The wire format of BYTES tensors: elements of a little-endian uint32 length and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reference_server.core import gil, string_packing

Objects = npt.NDArray[np.object_]

_LENGTH = struct.Struct("<I")


def element_bytes(element: object) -> bytes:
    """Return an element as Triton stores it: bytes unchanged, others as UTF-8 of their `str`."""
    # Subclasses, such as np.bytes_, are copied to plain bytes.
    if type(element) is bytes:
        return element
    return bytes(element) if isinstance(element, bytes) else str(element).encode()


def serialize(array: npt.NDArray[np.generic]) -> bytes:
    """Return the wire format of an object or `S<n>` array, in C order."""
    flat = array.ravel()
    slices: list[bytes] = []
    for start in range(0, max(1, flat.size), gil.SLICE):
        if start:
            gil.yield_gil()
        elements = flat[start : start + gil.SLICE].tolist()
        wire = string_packing.pack(elements)
        slices.append(_packed(elements) if wire is None else wire)
    return slices[0] if len(slices) == 1 else b"".join(slices)


def _packed(elements: list[object]) -> bytes:
    """Return the wire format of elements of any type."""
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in elements:
        encoded = element_bytes(element)
        parts.append(pack(len(encoded)))
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
    """Return the number of elements in `raw`, without making them. Raises Malformed as `split`."""
    unpack = _LENGTH.unpack_from
    end = len(raw)
    elements = position = 0
    while position < end:
        if end - position < 4:
            raise Malformed(elements, end - position, None)
        (length,) = unpack(raw, position)
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
    unpack = _LENGTH.unpack_from
    data = bytes(raw)  # elements are slices; slices of the view would keep the whole body alive
    end = len(data)
    position = _unpacked(data, elements)
    while position < end:
        if end - position < 4:
            raise Malformed(len(elements), end - position, None)
        (length,) = unpack(data, position)
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
        position = string_packing.unpack(data, end, position, gil.SLICE, elements)
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
