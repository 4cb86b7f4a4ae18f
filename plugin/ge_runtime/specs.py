"""The words for tensors: element types, dimensions with names, and the two together.

Values only. A dimension is a fixed size, the name of an axis whose size each request brings, or
UNKNOWN. The batch dimension is never part of a spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.errors import RuntimeFault

Array: TypeAlias = NDArray[Any]
Tensors: TypeAlias = Mapping[str, Array]
Dim: TypeAlias = int | str

UNKNOWN: Final = -1
"""A size that is known only once the graph has run."""


class DType(Enum):
    """Triton's element types; the value is the protocol's name."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"
    BF16 = "BF16"

    @classmethod
    def of_config(cls, name: str) -> DType:
        """The type that config.pbtxt calls `name`, e.g. TYPE_FP32. Raises KeyError if none."""
        return _BY_CONFIG_NAME[name]

    @classmethod
    def of_numpy(cls, dtype: np.dtype[Any]) -> DType:
        """The type whose elements NumPy holds as `dtype`. Raises KeyError if none."""
        return _BY_NUMPY[dtype]

    @property
    def config_name(self) -> str:
        """The name in config.pbtxt, where BYTES is spelled TYPE_STRING."""
        return "TYPE_STRING" if self is DType.BYTES else f"TYPE_{self.value}"

    @property
    def is_integer(self) -> bool:
        """Whether elements are whole numbers, signed or not."""
        return "INT" in self.value

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of an array of these elements; BYTES are `bytes` in an object array.

        Raises RuntimeFault for BF16: NumPy has no such type, and a stand-in of the same width
        would be taken for numbers that it is not.
        """
        dtype = _NUMPY.get(self)
        if dtype is None:
            raise RuntimeFault(f"{self.value} has no NumPy type")
        return dtype


_NUMPY: Final[Mapping[DType, np.dtype[Any]]] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.UINT8: np.dtype(np.uint8),
    DType.UINT16: np.dtype(np.uint16),
    DType.UINT32: np.dtype(np.uint32),
    DType.UINT64: np.dtype(np.uint64),
    DType.INT8: np.dtype(np.int8),
    DType.INT16: np.dtype(np.int16),
    DType.INT32: np.dtype(np.int32),
    DType.INT64: np.dtype(np.int64),
    DType.FP16: np.dtype(np.float16),
    DType.FP32: np.dtype(np.float32),
    DType.FP64: np.dtype(np.float64),
    DType.BYTES: np.dtype(np.object_),
}
_BY_NUMPY: Final = {dtype: member for member, dtype in _NUMPY.items()}
_BY_CONFIG_NAME: Final = {member.config_name: member for member in DType}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name, element type and dimensions, without the batch dimension."""

    name: str
    dtype: DType
    dims: tuple[Dim, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The names among the dimensions, in order."""
        return tuple(dim for dim in self.dims if isinstance(dim, str))

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The dimensions with each axis replaced by its size. Raises KeyError without one."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.dims))}]"
