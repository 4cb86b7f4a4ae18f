"""The wire form of BYTES tensors: each element is a little-endian uint32 length, then its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reference_server.core import gil, string_packing

Objects = npt.NDArray[np.object_]

_LENGTH = struct.Struct("<I")


def element_bytes(element: object) -> bytes:
    """One element as Triton stores it: bytes stay, anything else is the UTF-8 of its `str`."""
    # Of a subclass, such as np.bytes_, a plain copy.
    if type(element) is bytes:
        return element
    return bytes(element) if isinstance(element, bytes) else str(element).encode()


def serialize(array: npt.NDArray[np.generic]) -> bytes:
    """The wire form of an object or `S<n>` array, in C order."""
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
    """The wire form of some elements, whatever they are."""
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in elements:
        encoded = element_bytes(element)
        parts.append(pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def byte_size(array: npt.NDArray[np.generic]) -> int:
    """The length of `serialize(array)` without building it."""
    return sum(4 + len(element_bytes(element)) for element in array.ravel().tolist())


class Malformed(ValueError):
    """The bytes are not a sequence of length-prefixed strings.

    `elements` were whole, `available` bytes were left. With `length` None the four-byte length
    itself is cut; otherwise it announced more bytes than there are.
    """

    def __init__(self, elements: int, available: int, length: int | None) -> None:
        super().__init__(f"{elements} elements are whole, then {available} bytes cannot be read")
        self.elements = elements
        self.available = available
        self.length = length


#: Elements that are counted before others are let in: some 50 microseconds' work.
_COUNTED = 1 << 9


def count(raw: memoryview) -> int:
    """How many elements `raw` has, however many; raises Malformed as `split` does."""
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
    """The elements in `raw`; raises Malformed where a length or its bytes are cut."""
    elements: list[bytes] = []
    unpack = _LENGTH.unpack_from
    data = bytes(raw)  # slices of it are elements; slices of a view would keep the whole body
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
    """Append the elements of `data` up to the first that is cut, if any; where that begins."""
    position, end = 0, len(data)
    while True:
        found = len(elements)
        position = string_packing.unpack(data, end, position, gil.SLICE, elements)
        if position == end or len(elements) - found < gil.SLICE:
            return position
        gil.yield_gil()


def as_array(elements: Sequence[bytes], shape: tuple[int, ...]) -> Objects:
    """The elements as an object array of `shape`; their number must fit it."""
    # Not np.array(elements): that makes fixed-width strings, which lose zeros at their end.
    array = np.empty(len(elements), dtype=np.object_)
    start = 0
    for some in gil.slices(elements):
        array[start : start + len(some)] = some
        start += len(some)
    return array.reshape(shape)
