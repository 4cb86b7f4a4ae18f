"""A reader of .onnx files without their weights: the graph, and how many bytes the weights take.

A .onnx file is a Protobuf message that is nearly all weights. Its parser would read and copy them
all. Here the file is mapped, and only the messages on the way to a tensor are walked: the pages
that hold elements are never read. Field numbers are those of onnx.proto3 in the onnx repository.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.engines.analysis.protobuf import LENGTH_DELIMITED, fields, varint, varints

ELEMENT_BITS: Final[Mapping[int, int]] = {
    **dict.fromkeys((25, 26), 2),  # UINT2, INT2
    **dict.fromkeys((21, 22, 23), 4),  # UINT4, INT4, FLOAT4E2M1
    **dict.fromkeys((27, 28), 6),  # FLOAT6E2M3, FLOAT6E3M2
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),  # UINT8, INT8, BOOL, FLOAT8*
    **dict.fromkeys((4, 5, 10, 16), 16),  # UINT16, INT16, FLOAT16, BFLOAT16
    **dict.fromkeys((1, 6, 12), 32),  # FLOAT, INT32, UINT32
    **dict.fromkeys((7, 11, 13, 14), 64),  # INT64, DOUBLE, UINT64, COMPLEX64
    15: 128,  # COMPLEX128
}
"""Bits of an element, by TensorProto.DataType. Not there: strings, which have no fixed size."""

_KEPT_BYTES: Final = 1024
"""Tensors up to this size stay whole: shapes, axes and the like, from which sizes are told."""

_MESSAGES: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
}
"""Message: the fields through which a tensor is reached, and what is in them."""

_DIMS, _DATA_TYPE, _EXTERNAL = 1, 2, 13
_KEY, _VALUE = 1, 2
"""The fields of an entry of _EXTERNAL."""

_ELEMENTS: Final = frozenset((4, 5, 6, 7, 9, 10, 11, _EXTERNAL, 14))
"""The fields of a tensor that hold its elements, or say where they are."""


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """What is left of a .onnx file without its weights."""

    model: bytes
    """A ModelProto, serialized. Large tensors have a type and dims, and no elements."""
    weights_bytes: int
    """Of all tensors in it, those in external files included."""
    elsewhere: frozenset[str] = frozenset()
    """The external files, as it names them: paths from its own folder."""

    @classmethod
    def read(cls, path: Path) -> OnnxFile:
        """The file at `path`, which onnxruntime could open."""
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            walk = _Walk()
            with memoryview(data) as view:
                model = walk.without_weights(view, "model")
            return cls(model, walk.weights_bytes, frozenset(walk.elsewhere))


def nbytes(data_type: int, shape: tuple[int, ...]) -> int | None:
    """Bytes of a tensor; None for strings and types that are newer than this table."""
    bits = ELEMENT_BITS.get(data_type)
    return None if bits is None else -(-bits * math.prod(shape) // 8)


class _Walk:
    """Copies messages, leaving elements out, and notes what they take, and where they are."""

    def __init__(self) -> None:
        self.weights_bytes = 0
        self.elsewhere: set[str] = set()

    def without_weights(self, message: memoryview, kind: str) -> bytes:
        """The message of this kind, serialized anew."""
        if kind == "tensor":
            return self._without_elements(message)
        inner = _MESSAGES[kind]
        parts: list[bytes | memoryview] = []
        for number, field, content in fields(message):
            if number in inner:
                body = self.without_weights(content, inner[number])
                parts += varint(number << 3 | LENGTH_DELIMITED), varint(len(body)), body
            else:
                parts.append(field)
        return b"".join(parts)

    def _without_elements(self, tensor: memoryview) -> bytes:
        dims: list[int] = []
        data_type, external = 0, False
        parts: list[memoryview] = []
        for number, field, content in fields(tensor):
            if number == _DIMS:
                dims += varints(content)
            elif number == _DATA_TYPE:
                (data_type,) = varints(content)
            elif number == _EXTERNAL:
                external = True
                entry = {part: bytes(text) for part, _, text in fields(content)}
                if entry.get(_KEY) == b"location":
                    self.elsewhere.add(entry.get(_VALUE, b"").decode(errors="surrogateescape"))
            if number not in _ELEMENTS:
                parts.append(field)
        size = nbytes(data_type, tuple(dims)) or 0
        self.weights_bytes += size
        return b"".join(parts) if external or size > _KEPT_BYTES else bytes(tensor)
