"""Single operators: the files of `atc --singleop`, and their computation by NumPy.

A file has one operator with the types, dims and attributes that it was compiled for. CANN executes
an operator only if a loaded file matches it exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.codes import DataType

MAGIC: Final = b"ASIM_OP\n"

DTYPES: Final[Mapping[int, str]] = {
    DataType.ACL_FLOAT: "f4",
    DataType.ACL_FLOAT16: "f2",
    DataType.ACL_INT8: "i1",
    DataType.ACL_INT32: "i4",
    DataType.ACL_UINT8: "u1",
    DataType.ACL_INT16: "i2",
    DataType.ACL_UINT16: "u2",
    DataType.ACL_UINT32: "u4",
    DataType.ACL_INT64: "i8",
    DataType.ACL_UINT64: "u8",
    DataType.ACL_DOUBLE: "f8",
    DataType.ACL_BOOL: "?",
}
"""NumPy's types of operators' tensors, by aclDataType."""

Array: TypeAlias = NDArray[Any]
Attributes: TypeAlias = Mapping[str, object]


class Tensor(NamedTuple):
    """Type, dims and format of an operator's input or output."""

    dtype: int
    dims: tuple[int, ...]
    format: int
    const: str = ""
    """The bytes of a constant input, in hex; empty for other tensors."""

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of the elements."""
        return np.dtype(DTYPES[self.dtype])

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return int(np.prod(self.dims, dtype=np.int64)) * self.numpy.itemsize


class Operator(NamedTuple):
    """An operator for fixed types, dims and attributes."""

    kind: str
    """The type, e.g. "Cast"."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: tuple[tuple[str, object], ...] = ()
    """Names and values, sorted."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the outputs, with the declared types and dims."""
        found = OPERATORS[self.kind](inputs, dict(self.attributes))
        return [
            np.ascontiguousarray(each, dtype=tensor.numpy).reshape(tensor.dims)
            for each, tensor in zip(found, self.outputs, strict=True)
        ]

    def serialized(self) -> bytes:
        """Return the bytes of the operator's file."""
        fields = [self.kind, self.inputs, self.outputs, self.attributes]
        return MAGIC + json.dumps(fields).encode()


def parse(data: bytes) -> Operator | None:
    """Parse the bytes of an operator's file; None for other files."""
    if not data.startswith(MAGIC):
        return None
    kind, inputs, outputs, attributes = json.loads(data[len(MAGIC) :])
    given, wanted = (
        tuple(Tensor(dtype, tuple(dims), *more) for dtype, dims, *more in each)
        for each in (inputs, outputs)
    )
    return Operator(kind, given, wanted, tuple((name, value) for name, value in attributes))


def read_folder(folder: Path) -> list[Operator]:
    """Return the operators of all .om files in a folder."""
    found = (parse(path.read_bytes()) for path in sorted(folder.glob("*.om")))
    return [each for each in found if each is not None]


def _arg_max(inputs: Sequence[Array], attributes: Attributes) -> list[Array]:
    axis = inputs[1].item() if len(inputs) > 1 else attributes.get("dimension", 0)
    assert isinstance(axis, int)
    return [inputs[0].argmax(axis)]


def _matmul(inputs: Sequence[Array], attributes: Attributes) -> list[Array]:
    first, second = (
        array.T if attributes.get(name) else array
        for array, name in zip(inputs, ("transpose_x1", "transpose_x2"), strict=False)
    )
    return [first @ second]


OPERATORS: Final[Mapping[str, Callable[[Sequence[Array], Attributes], list[Array]]]] = {
    "Add": lambda inputs, _: [inputs[0] + inputs[1]],
    "ArgMaxD": _arg_max,
    "ArgMaxV2": _arg_max,
    "Cast": lambda inputs, _: [inputs[0]],
    "MatMul": _matmul,
    "Mul": lambda inputs, _: [inputs[0] * inputs[1]],
}
"""The simulated operators by name: they compute outputs of any type from inputs and attributes."""

TYPE_NAMES: Final = {
    "float32": DataType.ACL_FLOAT,
    **{DataType(each).name.removeprefix("ACL_").lower(): DataType(each) for each in DTYPES},
}
"""Types by their names in the file of --singleop."""
