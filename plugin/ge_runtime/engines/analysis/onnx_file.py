"""A reader of .onnx files that skips the weights: returns the graph and the size of the weights.

A .onnx file is a Protobuf message that consists almost entirely of weights, which a Protobuf parser
would read and copy. Here the file is mapped, and only the messages that contain tensors are walked:
the pages with elements are never read. Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.engines.analysis.protobuf import LENGTH_DELIMITED, fields, varint, varints
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import DType

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
"""Bits of an element by TensorProto.DataType. Strings are missing, as they have no fixed size."""

_KEPT_BYTES: Final = 1024
"""Tensors up to this size are kept, e.g. shapes and axes, which determine other tensors' sizes."""

MESSAGES: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse tensor",
        23: "sparse tensor",
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
}
"""The messages in fields that may contain tensors, by field number, by outer message."""

DIMS, DATA_TYPE = 1, 2
EXTERNAL_DATA: Final = 13
"""The field of a tensor with entries that describe a part of an external file."""
KEY: Final = 1
VALUE: Final = 2
"""The fields of an entry of EXTERNAL_DATA."""

_ELEMENTS: Final = frozenset((4, 5, 6, 7, 9, 10, 11, EXTERNAL_DATA, 14))
"""The fields of a tensor that contain its elements or their location."""


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A .onnx file without its weights."""

    model: bytes
    """The serialized ModelProto. Large tensors have a type and dims, but no elements."""
    weights_bytes: int
    """Size of all tensors, including tensors in external files."""
    elsewhere: frozenset[str] = frozenset()
    """Paths of the external files, relative to the folder of the .onnx file."""

    @classmethod
    def read(cls, path: Path) -> OnnxFile:
        """Read the file at `path`, which onnxruntime must be able to open."""
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            walk = _Walk()
            with memoryview(data) as view:
                model = walk.without_weights(view, "model")
            return cls(model, walk.weights_bytes, frozenset(walk.elsewhere))


_GRAPH: Final = 7
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12
_TENSOR_NAME: Final = 8
# fmt: off
DTYPES: Final[Mapping[int, DType]] = {
    1: DType.FP32, 2: DType.UINT8, 3: DType.INT8, 4: DType.UINT16, 5: DType.INT16, 6: DType.INT32,
    7: DType.INT64, 8: DType.BYTES, 9: DType.BOOL, 10: DType.FP16, 11: DType.FP64,
    12: DType.UINT32, 13: DType.UINT64, 16: DType.BF16,
}
# fmt: on
"""Triton's types by TensorProto.DataType."""


def read_signature(path: Path) -> Signature:
    """Return the inputs and outputs that a .onnx file declares; its operators may be unknown.

    Raises ArtifactFault if it is not a graph, or declares tensors without a type of Triton.
    """
    try:
        (graph,) = _parts(memoryview(OnnxFile.read(path).model), _GRAPH)
        weights = {_text(tensor, _TENSOR_NAME) for tensor in _parts(graph, _INITIALIZER)}
        inputs = [_tensor(path, value) for value in _parts(graph, _INPUT)]
        outputs = [_tensor(path, value) for value in _parts(graph, _OUTPUT)]
    except (ValueError, IndexError) as error:
        raise ArtifactFault(f"{path}: cannot be read as an ONNX graph: {error}") from error
    # Files of old versions declare weights as inputs, too.
    return Signature(tuple(one for one in inputs if one.name not in weights), tuple(outputs))


def _tensor(path: Path, value: memoryview) -> GraphTensor:
    """Convert a ValueInfoProto: {1: name, 2: {1: {1: type, 2: {1: dim, ...}}}}."""
    name = _text(value, 1)
    tensor = [part for kind in _parts(value, 2) for part in _parts(kind, 1)]
    types = [number for part in tensor for each in _parts(part, 1) for number in varints(each)]
    dtype = DTYPES.get(types[-1]) if types else None
    if dtype is None:
        found = f"type {types[-1]}" if types else "no tensor type"
        raise ArtifactFault(
            f"{path}: found '{name}' of {found}, expected a tensor of a type that Triton has"
        )
    dims: list[int | None] | None = None
    symbols: list[str | None] = []
    for shape in _parts(tensor[-1], 2):
        dims = []
        for dim in _parts(shape, 1):  # {1: size, 2: symbol}
            sizes = [size for each in _parts(dim, 1) for size in varints(each)]
            dims.append(sizes[-1] if sizes and sizes[-1] < 2**63 else None)  # not negative
            symbols.append(_text(dim, 2) or None)
    return GraphTensor(name, dtype, None if dims is None else tuple(dims), tuple(symbols))


def _parts(message: memoryview, number: int) -> list[memoryview]:
    return [content for field, _, content in fields(message) if field == number]


def _text(message: memoryview, number: int) -> str:
    return b"".join(_parts(message, number)[-1:]).decode()


def nbytes(data_type: int, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor; None for strings and types that are not in the table."""
    bits = ELEMENT_BITS.get(data_type)
    return None if bits is None else -(-bits * math.prod(shape) // 8)


class _Walk:
    """Copies messages without elements, and records the elements' size and external files."""

    def __init__(self) -> None:
        self.weights_bytes = 0
        self.elsewhere: set[str] = set()

    def without_weights(self, message: memoryview, kind: str) -> bytes:
        """Return a message of this kind, serialized again without elements."""
        if kind == "tensor":
            return self._without_elements(message)
        inner = MESSAGES[kind]
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
            if number == DIMS:
                dims += varints(content)
            elif number == DATA_TYPE:
                (data_type,) = varints(content)
            elif number == EXTERNAL_DATA:
                external = True
                entry = {part: bytes(text) for part, _, text in fields(content)}
                if entry.get(KEY) == b"location":
                    self.elsewhere.add(entry.get(VALUE, b"").decode(errors="surrogateescape"))
            if number not in _ELEMENTS:
                parts.append(field)
        size = nbytes(data_type, tuple(dims)) or 0
        self.weights_bytes += size
        return b"".join(parts) if external or size > _KEPT_BYTES else bytes(tensor)
