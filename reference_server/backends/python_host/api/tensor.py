"""`Tensor`, a named array of a request or response, with its element types and memory types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from reference_server.backends.python_host.api import dlpack
from reference_server.backends.python_host.api.native import (
    INT64,
    MODULE,
    Native,
    NativeEnum,
    TritonModelException,
    as_instance,
    as_integer,
    as_list,
    as_text,
    refusal,
)
from reference_server.backends.python_host.shared_names import report_row
from reference_server.core import byte_strings
from reference_server.core import tensor as core
from reference_server.core.tensor import DataType, datatype_of


class MemoryType(NativeEnum):
    """The memory that holds a tensor. In Triton's C API the two numbers are swapped."""

    __slots__ = ()
    __module__ = MODULE

    TRITONSERVER_MEMORY_GPU: ClassVar[MemoryType]
    TRITONSERVER_MEMORY_CPU: ClassVar[MemoryType]


MemoryType._enumerate("TRITONSERVER_MEMORY_GPU", "TRITONSERVER_MEMORY_CPU")

TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

#: The number of each data type. BF16 has a number but no NumPy type.
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


class PreferredMemory(Native):
    """The memory in which a called model shall put its outputs.

    Args:
        preferred_memory_type: `TRITONSERVER_MEMORY_CPU` or `TRITONSERVER_MEMORY_GPU`.
        preferred_device_id: The number of the device, a signed 64-bit integer.

    Raises:
        TypeError: An argument has another type.
    """

    __slots__ = ("_device_id", "_memory_type")
    __module__ = MODULE

    _memory_type: MemoryType | None

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self._memory_type = as_instance(preferred_memory_type, "preferred_memory_type", MemoryType)
        self._device_id = as_integer(preferred_device_id, "preferred_device_id", INT64)

    @classmethod
    def _any(cls) -> PreferredMemory:
        """Return an object without a preference."""
        self = object.__new__(cls)
        self._memory_type = None
        return self


NO_PREFERENCE = PreferredMemory._any()

_new = object.__new__
# A lookup through the enumeration's class takes ten times as long.
_BYTES, _BF16 = DataType.BYTES, DataType.BF16
_NO_NAME = "Tensor name cannot be an empty string."


def _subclass_of_bytes() -> None:
    report_row("np-bytes")


class Tensor(Native):
    """A named tensor in host memory.

    A C-contiguous array is kept by reference, so a later change to it appears in the response.
    Other arrays are copied. Strings are encoded at once: `bytes` as they are, any other object as
    the UTF-8 of its `str`.

    Args:
        name: The tensor's name.
        numpy_array: An array of any shape. Its element type is bool, int8 to int64, uint8 to
            uint64, float16 to float64, `object` or `S<n>`.

    Raises:
        TritonModelException: The name is empty or the element type is not supported.
        TypeError: An argument has another type.
    """

    # `_core` is the tensor that the server passes on. `_array` is the result of `as_numpy`; for a
    # received tensor it is None until the first call.

    __slots__ = ("_array", "_core")
    __module__ = MODULE

    _array: np.ndarray[Any, Any] | None
    _core: core.Tensor

    def __init__(self, name: str | bytes, numpy_array: np.ndarray[Any, Any], /) -> None:
        if type(name) is not str or not name.isascii():  # the usual case needs no call
            name = as_text(name, "name")
        if not isinstance(numpy_array, np.ndarray):
            raise refusal("numpy_array", numpy_array, "numpy.ndarray")
        if not name:
            raise TritonModelException(_NO_NAME)
        datatype = datatype_of(numpy_array)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        # Reading `data`, as Triton does, refuses masked arrays, which would lose their mask.
        if not numpy_array.data.c_contiguous:
            numpy_array = np.ascontiguousarray(numpy_array)
        self._array = numpy_array
        if datatype is _BYTES:
            raw = memoryview(byte_strings.serialize(numpy_array, _subclass_of_bytes))
            self._core = core.Tensor(name, datatype, numpy_array.shape, raw=raw)
        else:
            plain = numpy_array if type(numpy_array) is np.ndarray else numpy_array.view(np.ndarray)
            self._core = core.Tensor(name, datatype, plain.shape, array=plain)

    @classmethod
    def _received(cls, tensor: core.Tensor) -> Tensor:
        self = _new(cls)
        self._core = tensor
        self._array = None
        return self

    def name(self) -> str:
        """Return the tensor's name."""
        return self._core.name

    def shape(self) -> list[int]:
        """Return the sizes of the dimensions, in a new list."""
        return list(self._core.shape)

    def is_cpu(self) -> bool:
        """Return whether the elements are in host memory."""
        return True

    def triton_dtype(self) -> int:
        """Return the number of the data type, as in `triton_to_numpy_type`. BF16 is 14."""
        report_row("triton-dtype")
        assert self._core.datatype is not None
        return TYPE_CODES[self._core.datatype]

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements; each call returns the same array.

        Returns:
            For a tensor that the model built, the array passed to the constructor. For a received
            tensor, a writable array that may outlive the request. Strings are an object array of
            `bytes`.

        Raises:
            TritonModelException: The data type is BF16, which NumPy does not have.
        """
        if self._array is None:
            if self._core.datatype is _BF16:
                raise TritonModelException(
                    "Tensor dtype is BF16 and cannot be converted to NumPy. "
                    "Use to_dlpack() and from_dlpack() instead."
                )
            array = self._core.array()
            # A response of another model in this process may hold a read-only array.
            self._array = array if array.flags.writeable else array.copy()
        return self._array

    def to_dlpack(self) -> dlpack.Capsule:
        """Return a DLPack capsule that shares the tensor's memory and keeps it alive.

        Raises:
            TritonModelException: The elements are strings.
        """
        datatype = self._core.datatype
        if datatype is None or datatype is _BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.export(self._core.array(), datatype)

    def __dlpack__(self, stream: object = None) -> dlpack.Capsule:
        """Return the capsule of `to_dlpack`. `stream` is ignored for host memory."""
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's type and number of the device."""
        return (dlpack.CPU, 0)

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: object, /) -> Tensor:
        """Return a tensor that shares the memory of a DLPack capsule or producer.

        For an object in GPU memory that has a method `cpu`, such as a torch tensor, the server
        receives a copy. This path has not been run on a GPU.

        Args:
            name: The tensor's name.
            tensor: A DLPack capsule, or an object with `__dlpack__` and `__dlpack_device__`. The
                elements must be C-contiguous, in host memory, and of a Triton type, BF16 included.

        Raises:
            TritonModelException: The name is empty or the elements do not meet these conditions.
                Exceptions of the producer pass through.
            TypeError: The name is not a string.
        """
        name = as_text(name, "name")
        if not name:
            raise TritonModelException(_NO_NAME)
        if isinstance(tensor, np.ndarray):
            report_row("dlpack-numpy")
        copy = dlpack.host_copy(tensor)
        array, datatype = dlpack.consume(tensor if copy is None else copy)
        received = core.Tensor(name, datatype, array.shape, array=array)
        return Tensor._received(received) if copy is None else _GpuTensor._of(received, tensor)


class _GpuTensor(Tensor):
    """A tensor that a model created in GPU memory.

    `_source` is the model's tensor. `_core` is its copy in host memory, which the server passes on.
    """

    __slots__ = ("_source",)
    __module__ = MODULE

    _source: Any

    @classmethod
    def _of(cls, copy: core.Tensor, source: object) -> Tensor:
        self = cls._received(copy)
        assert isinstance(self, cls)
        self._source = source
        return self

    def is_cpu(self) -> bool:
        return False

    def as_numpy(self) -> np.ndarray[Any, Any]:
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def to_dlpack(self) -> dlpack.Capsule:
        return self.__dlpack__()

    def __dlpack__(self, stream: object = None) -> dlpack.Capsule:
        capsule: dlpack.Capsule = self._source.__dlpack__(stream=stream)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._source.__dlpack_device__()
        return int(kind), int(number)


_GpuTensor.__name__ = _GpuTensor.__qualname__ = Tensor.__name__


def as_tensors(value: object, argument: str) -> list[Any]:
    """Return the elements of a list argument, each a Tensor or None. Raises TypeError."""
    if type(value) is list:  # the usual case, for each response
        for element in value:
            if type(element) is not Tensor:
                break
        else:
            return value.copy()
    return as_list(value, argument, lambda item: as_instance(item, argument, Tensor, or_none=True))


def first_named(tensors: Iterable[Tensor], name: str) -> Tensor | None:
    """Return the first tensor of that name, or None."""
    for tensor in tensors:
        if tensor._core.name == name:
            return tensor
    return None
