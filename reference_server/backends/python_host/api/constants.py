"""The numbers that models compare flags, memory types and data types with."""

from __future__ import annotations

from typing import Any

import numpy as np

from reference_server.core.dtypes import DataType

from .native import MODULE, NativeEnum

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class MemoryType(NativeEnum):
    """Where a tensor lies; the numbers are this API's own, the C API's are the other way round."""

    __module__ = MODULE

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

#: The number of each data type; BF16 has one too, but no NumPy type.
TYPE_CODES = {
    DataType.BOOL: 1,
    DataType.UINT8: 2,
    DataType.UINT16: 3,
    DataType.UINT32: 4,
    DataType.UINT64: 5,
    DataType.INT8: 6,
    DataType.INT16: 7,
    DataType.INT32: 8,
    DataType.INT64: 9,
    DataType.FP16: 10,
    DataType.FP32: 11,
    DataType.FP64: 12,
    DataType.BYTES: 13,
    DataType.BF16: 14,
}

#: The NumPy type of each number.
NUMPY_TYPES: dict[int, type[np.generic]] = {
    code: np.dtype(datatype.numpy).type
    for datatype, code in TYPE_CODES.items()
    if datatype is not DataType.BF16
}

#: The NumPy type of each name in a configuration. BOOL is Python's own type, as in Triton.
TRITON_STRING_TO_NUMPY: dict[str, type[Any]] = {
    datatype.config_name: bool if datatype is DataType.BOOL else NUMPY_TYPES[code]
    for datatype, code in TYPE_CODES.items()
    if datatype is not DataType.BF16
}
