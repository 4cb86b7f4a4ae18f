"""Read CANN's dump of one execution: the tensors of each operator.

A file contains 8 bytes with the length of a DumpData message (dump_data.proto of CANN), the
message, and the tensors one after another, inputs first. The message is decoded without the package
protobuf, because CANN and onnx need different releases of that package.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ge_runtime.engines.analysis.protobuf import fields, varints
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array

_TYPES: Final[Mapping[int, Any]] = {
    1: np.float32,
    2: np.float16,
    3: np.int8,
    4: np.uint8,
    5: np.int16,
    6: np.uint16,
    7: np.int32,
    8: np.int64,
    9: np.uint32,
    10: np.uint64,
    11: np.bool_,
    12: np.float64,
}
"""NumPy types by OutputDataType of dump_data.proto, without types that NumPy lacks."""
_NHWC: Final = 1
_NC1HWC0: Final = 3
_FRACTAL_NZ: Final = 29
_PLAIN: Final = (0, 2, 30)
"""NCHW, ND and NCDHW: elements are in the order of the dims."""

_OUTPUT_SIZE: Final = 6
"""Field number of the size in OpOutput."""

Fields: TypeAlias = dict[int, list[bytes]]


@dataclass(frozen=True, slots=True)
class DumpedTensor:
    """A tensor in the card's layout."""

    elements: Array | None
    """Flat elements; None if NumPy lacks the type."""
    dims: tuple[int, ...]
    format: int
    """OutputFormat of dump_data.proto."""
    original: str = ""
    """Name of the ONNX operator that an output belongs to; "" if the dump does not name it."""
    original_index: int = 0
    """Index of the output among the outputs of that operator."""

    def shaped(self, shape: tuple[int, ...]) -> Array | None:
        """Return the tensor in the graph's layout and shape; None if that is not possible."""
        if self.elements is None or self.elements.size != math.prod(self.dims):
            return None
        array = self.elements.reshape(self.dims)
        if self.format == _NC1HWC0 and array.ndim == 5 and len(shape) == 4:
            n, c1, h, w, c0 = self.dims
            array = array.transpose(0, 1, 4, 2, 3).reshape(n, c1 * c0, h, w)
            array = array[:, : shape[1]]
        elif self.format == _FRACTAL_NZ and array.ndim >= 4 and len(shape) >= 2:
            outer = range(array.ndim - 4)
            *before, n1, m1, m0, n0 = self.dims
            at = len(before)
            array = array.transpose(*outer, at + 1, at + 2, at, at + 3)
            array = array.reshape(*before, m1 * m0, n1 * n0)[..., : shape[-2], : shape[-1]]
        elif self.format == _NHWC and array.ndim == 4 and self.dims != shape:
            array = array.transpose(0, 3, 1, 2)
        elif self.format not in _PLAIN and self.dims != shape:
            return None
        return array.reshape(shape) if array.size == math.prod(shape) else None


@dataclass(frozen=True, slots=True)
class DumpedOperator:
    """The tensors of one operator of the compiled model."""

    name: str
    inputs: Sequence[DumpedTensor]
    outputs: Sequence[DumpedTensor]


def read_dump(folder: Path) -> list[DumpedOperator]:
    """Return the dumped operators of one execution, in the order of their time stamps.

    Raises:
        ArtifactFault: a file cannot be decoded.
        OSError: a file cannot be read.
    """
    # Dumps are named {type}.{name}.{task}.{stream}.{time stamp}. Other files are configuration.
    files = [each for each in folder.rglob("*") if each.name.count(".") >= 3 and each.is_file()]
    return [_read(each) for each in sorted(files, key=lambda each: each.name.rpartition(".")[2])]


def _read(path: Path) -> DumpedOperator:
    content = path.read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", content)
        if length > len(content) - 8:
            raise ValueError("the file is truncated")
        message = _fields(content[8 : 8 + length])
        data = memoryview(content)[8 + length :]
        # In DumpData, field 3 is the outputs, field 4 the inputs, and field 6 the operator's name.
        inputs, data = _tensors(message.get(4, ()), data, size=5, inline=4)
        outputs, data = _tensors(message.get(3, ()), data, size=_OUTPUT_SIZE, inline=5)
        (name,) = message.get(6, [b""])
        return DumpedOperator(name.decode(), inputs, outputs)
    except (ValueError, struct.error, IndexError, AttributeError, TypeError) as error:
        raise ArtifactFault(f"{path}: not a readable dump of an operator: {error}") from error


def _tensors(
    messages: Sequence[bytes], data: memoryview, *, size: int, inline: int
) -> tuple[list[DumpedTensor], memoryview]:
    """Decode OpInput or OpOutput messages; return the tensors and the remaining data.

    `size` and `inline` are the field numbers of the tensor's size and of data inside the message.
    """
    # In both messages, field 1 is the type, field 2 the format and field 3 the dims. Field 4 of
    # OpOutput is the ONNX operator.
    has_original = size == _OUTPUT_SIZE
    found = []
    for each in messages:
        tensor = _fields(each)
        content = tensor.get(inline, [b""])[0]
        nbytes = _number(tensor, size)
        if not content:
            if nbytes > len(data):
                raise ValueError(f"found {len(data)} bytes of a tensor, expected {nbytes}")
            content, data = bytes(data[:nbytes]), data[nbytes:]
        dtype = _TYPES.get(_number(tensor, 1))
        dims = _numbers(_fields(tensor.get(3, [b""])[0]), 1)
        original = _fields(tensor.get(4, [b""])[0]) if has_original else {}
        count = math.prod(dims)
        found.append(
            DumpedTensor(
                # Padding may follow the elements.
                None
                if dtype is None or len(content) < count * np.dtype(dtype).itemsize
                else np.frombuffer(content, dtype, count),
                dims,
                _number(tensor, 2),
                original.get(1, [b""])[0].decode(),
                _number(original, 2),
            )
        )
    return found, data


def _fields(message: bytes) -> Fields:
    """Return the values of each field number."""
    found: Fields = {}
    for number, _, content in fields(memoryview(message)):
        found.setdefault(number, []).append(bytes(content))
    return found


def _number(message: Fields, field: int) -> int:
    """Return an integer field, 0 if it is absent."""
    (number,) = varints(memoryview(message.get(field, [b"\0"])[0]))
    return number


def _numbers(message: Fields, field: int) -> tuple[int, ...]:
    """Return a repeated integer field, packed or not."""
    return tuple(n for each in message.get(field, ()) for n in varints(memoryview(each)))
