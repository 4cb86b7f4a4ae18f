"""The data types of the protocol: names in requests and in config.pbtxt, sizes, NumPy types."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt


class DataType(enum.Enum):
    """A data type; the value is its name in requests (`FP32`, `BYTES`, ...)."""

    # Enum.__hash__ is a Python function, which is slow on the request path.
    __hash__ = object.__hash__

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
    BF16 = "BF16"
    BYTES = "BYTES"

    config_name: str
    byte_size: int
    #: True for BYTES, whose elements differ in length.
    is_bytes: bool
    numpy: npt.DTypeLike


#: NumPy has no bfloat16: its bits are stored as uint16.
_NUMPY: dict[DataType, npt.DTypeLike] = {
    DataType.BOOL: np.dtype(np.bool_),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.UINT16: np.dtype(np.uint16),
    DataType.UINT32: np.dtype(np.uint32),
    DataType.UINT64: np.dtype(np.uint64),
    DataType.INT8: np.dtype(np.int8),
    DataType.INT16: np.dtype(np.int16),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT64: np.dtype(np.int64),
    DataType.FP16: np.dtype(np.float16),
    DataType.FP32: np.dtype(np.float32),
    DataType.FP64: np.dtype(np.float64),
    DataType.BF16: np.dtype(np.uint16),
    DataType.BYTES: np.dtype(np.object_),
}

for _member in DataType:
    # Plain attributes, since properties are slower and the request path reads them per tensor.
    _member.config_name = "TYPE_STRING" if _member is DataType.BYTES else f"TYPE_{_member.value}"
    _member.is_bytes = _member is DataType.BYTES
    _member.numpy = _NUMPY[_member]
    _member.byte_size = 0 if _member is DataType.BYTES else np.dtype(_NUMPY[_member]).itemsize

#: Data types by their names in requests.
BY_NAME: dict[str, DataType] = {member.value: member for member in DataType}
BY_CONFIG_NAME: dict[str, DataType] = {member.config_name: member for member in DataType}
#: Keyed by dtype, because hashing a dtype takes a tenth of the time of making its name.
_BY_NUMPY: dict[np.dtype[np.generic], DataType] = {
    np.dtype(_NUMPY[member]): member for member in DataType if member is not DataType.BF16
}


def of_array(array: npt.NDArray[np.generic]) -> DataType | None:
    """Return the data type of the elements of `array`; None if the protocol has no such type.

    Fixed-width byte strings (`S<n>`) and objects are BYTES; uint16 is UINT16, never BF16.
    """
    found = _BY_NUMPY.get(array.dtype)
    if found is None and array.dtype.kind == "S":
        return DataType.BYTES
    return found
