"""Tensors: memory with an address, an element type and a shape.

Memory is shared with other libraries by DLPack, through NumPy. BF16 tensors cannot be shared,
because NumPy lacks BF16. The memory of BYTES tensors is the wire format: each element's length in 4
bytes, little-endian, followed by the element.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference_server.core import byte_strings
from reference_server.core.tensor import DATATYPES
from tritonserver._c import DataType, InvalidArgumentError, MemoryType, UnsupportedError

Array = npt.NDArray[Any]


class DLDeviceType(enum.IntEnum):
    """The type of a device in DLPack."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLVPI = 9
    kDLROCM = 10
    kDLROCMHost = 11
    kDLExtDev = 12
    kDLCUDAManaged = 13
    kDLOneAPI = 14
    kDLWebGPU = 15
    kDLHexagon = 16


#: A device: a memory type or a DLPack type, alone or with the device's number, or a text such as
#: `cpu` or `gpu:1`.
DeviceOrMemoryType = tuple[MemoryType, int] | MemoryType | tuple[DLDeviceType, int] | str

#: NumPy's types that DLPack has, too.
_NUMPY: dict[DataType, np.dtype[Any]] = {
    DataType[name]: np.dtype(data_type.numpy)
    for name, data_type in DATATYPES.items()
    if name not in ("BYTES", "BF16")
}
_OF_NUMPY: dict[type, DataType] = {
    **{dtype.type: data_type for data_type, dtype in _NUMPY.items()},
    **dict.fromkeys((np.bytes_, np.str_, np.object_), DataType.BYTES),
}


def _unconvertible(kind: str, value: object, target: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"Unsupported {kind}. Can't convert {value} to {target}")


@dataclass
class MemoryBuffer:
    """Memory with an address, which `owner` keeps alive.

    Attributes:
        data_ptr: the address.
        memory_type: the kind of memory.
        memory_type_id: the number of the device.
        size: the number of bytes.
        owner: the object that owns the memory.
    """

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int
    owner: Any

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:  # noqa: ANN401 - any object with DLPack
        """Return the memory of an object that supports DLPack, without a copy.

        Raises:
            InvalidArgumentError: the object does not support DLPack, or is not contiguous.
        """
        if not hasattr(owner, "__dlpack__"):
            raise InvalidArgumentError("Object does not support DLpack protocol")
        return Tensor.from_dlpack(owner).memory_buffer


class _View:
    """Memory of a tensor for NumPy, by the array interface. The array keeps the tensor alive."""

    def __init__(self, tensor: Tensor, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr, False),
            "shape": tuple(map(int, shape)),
            "typestr": dtype.str,
            "version": 3,
        }


@dataclass
class Tensor:
    """A tensor of a request or a response.

    Attributes:
        data_type: the type of the elements.
        shape: the sizes of the dimensions.
        memory_buffer: the memory; see the module for the format of BYTES.
    """

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    @property
    def data_ptr(self) -> int:
        """The address of the memory."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """The kind of memory."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the device."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.memory_buffer.size

    def __dlpack__(self, *, stream: int | None = None) -> object:
        """Return a capsule that shares the memory.

        Raises:
            InvalidArgumentError: the type is BYTES.
            UnsupportedError: a stream is given, or the memory is on a GPU.
        """
        if stream not in (None, 0) or self.memory_type is MemoryType.GPU:
            raise UnsupportedError(
                f"DLPack stream synchronization on memory type {self.memory_type} and stream "
                f"{stream} not supported"
            )
        dtype = _NUMPY.get(self.data_type)
        if dtype is None:
            raise _unconvertible("Triton server data type", self.data_type, "DLPack data type")
        return np.asarray(_View(self, dtype, self.shape)).__dlpack__()

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        is_gpu = self.memory_type is MemoryType.GPU
        return DLDeviceType.kDLCUDA if is_gpu else DLDeviceType.kDLCPU, self.memory_type_id

    def bytes_view(self) -> Array:
        """Return the memory as an array of bytes, which keeps this tensor alive.

        Raises:
            UnsupportedError: the memory is on a GPU.
        """
        if self.memory_type is MemoryType.GPU:
            raise UnsupportedError(
                f"Conversion from {self.memory_type} to numpy array not supported."
            )
        return np.asarray(_View(self, np.dtype(np.uint8), [self.size]))

    def to_bytes_array(self) -> Array:
        """Return the elements of a BYTES tensor as an array of `bytes`.

        Raises:
            InvalidArgumentError: the type is not BYTES, or the memory is not the wire format of as
                many elements as the shape has.
        """
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Tensor has data type {self.data_type} not {DataType.BYTES}"
            )
        try:
            elements = byte_strings.split(self.bytes_view().data)
            return byte_strings.as_array(elements, tuple(map(int, self.shape)))
        except (byte_strings.Malformed, ValueError) as error:
            raise InvalidArgumentError(f"BYTES tensor of shape {self.shape}: {error}") from None

    def to_string_array(self) -> Array:
        """Return the elements of a BYTES tensor as an array of `str`, decoded as UTF-8.

        Raises:
            InvalidArgumentError: see `to_bytes_array`.
            UnicodeDecodeError: an element is not UTF-8.
        """
        elements = self.to_bytes_array()
        strings = [element.decode() for element in elements.ravel().tolist()]
        return np.array(strings, np.str_).reshape(elements.shape)

    @staticmethod
    def from_bytes_array(bytes_array: Sequence[Any] | Array) -> Tensor:
        """Return a BYTES tensor of strings or `bytes`.

        Args:
            bytes_array: a list, or an array; other objects become strings.

        Raises:
            InvalidArgumentError: the elements are numbers.
        """
        made = Tensor._from_object(bytes_array)
        if made.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported conversion from {bytes_array} to Triton BYTES Tensor. "
                f"Got {made.data_type}"
            )
        return made

    @staticmethod
    def from_string_array(string_array: Sequence[Any] | Array) -> Tensor:
        """Return a BYTES tensor; see `from_bytes_array`."""
        return Tensor.from_bytes_array(string_array)

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:  # noqa: ANN401 - any object with DLPack
        """Return a tensor that shares the memory of an object with DLPack, such as an array.

        Raises:
            InvalidArgumentError: the object does not support DLPack, is not contiguous, is not in
                CPU memory, or its elements have no type in Triton.
        """
        try:
            obj.__dlpack_device__()
            array = np.from_dlpack(obj)
        except Exception as error:
            raise InvalidArgumentError(
                f"Object does not support DLPack protocol: {error}"
            ) from None
        if not array.flags.c_contiguous:
            raise InvalidArgumentError("Only contiguous memory is supported")
        tensor = _from_array(array)
        tensor.memory_buffer.owner, tensor.shape = obj, list(array.shape)
        return tensor

    def to_host(self) -> Tensor:
        """Return this tensor, which is in CPU memory. Raises UnsupportedError on a GPU."""
        return self.to_device("cpu")

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """Return the tensor on a device: itself, since there is CPU memory only.

        Raises:
            InvalidArgumentError: there is no such type of device.
            UnsupportedError: the device is a GPU.
        """
        target = _parsed_device(device)
        own = self.memory_type, self.memory_type_id
        if own == target or (own[0], target[0]) == (MemoryType.CPU_PINNED, MemoryType.CPU):
            return self
        raise UnsupportedError(f"Conversion from {own} to {target} not supported.")

    @staticmethod
    def _from_object(value: Any) -> Tensor:  # noqa: ANN401 - any object
        """Return the tensor of an input. Raises InvalidArgumentError."""
        if type(value) is list:
            try:
                array = np.array(value)
                if array.dtype.kind in "SU":  # a dtype whose elements lose trailing zeros
                    array = np.array(value, np.object_)
                return _from_array(array)
            except Exception as error:
                raise InvalidArgumentError(
                    f"Conversion from {value} to tensor not supported."
                ) from error
        if type(value) is np.ndarray or isinstance(value, np.generic):
            return _from_array(np.asarray(value))
        if hasattr(value, "__dlpack__"):
            return Tensor.from_dlpack(value)
        accepted = [np.ndarray, np.generic, list]
        raise InvalidArgumentError(
            f"Input type {type(value)} not supported. Must be one of {accepted} or the type must "
            "support __dlpack__"
        )


def _from_array(array: Array) -> Tensor:
    data_type = _OF_NUMPY.get(array.dtype.type)
    if data_type is None:
        raise _unconvertible("Numpy data type", array.dtype.type, "Triton server data type")
    if data_type is DataType.BYTES:
        strings = array if array.dtype.kind == "S" else array.astype(np.object_)
        memory = np.frombuffer(byte_strings.serialize(strings), np.uint8)
    else:
        memory = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return from_memory(data_type, array.shape, memory)


def from_memory(data_type: DataType, shape: Sequence[int], memory: Array) -> Tensor:
    """Return a tensor that uses the memory of a contiguous array."""
    buffer = MemoryBuffer(memory.ctypes.data, MemoryType.CPU, 0, memory.nbytes, memory)
    return Tensor(data_type, shape, buffer)


def _parsed_device(device: object) -> tuple[MemoryType, int]:
    """Return the memory type and the number of a device. Raises InvalidArgumentError."""
    if isinstance(device, MemoryType):
        return device, 0
    if isinstance(device, tuple) and len(device) == 2:
        kind, number = device
        if isinstance(kind, MemoryType):
            return kind, number
        if kind in (DLDeviceType.kDLCPU, DLDeviceType.kDLCUDA):
            return (MemoryType.CPU if kind == DLDeviceType.kDLCPU else MemoryType.GPU), number
    if not isinstance(device, str):
        raise InvalidArgumentError(f"Invalid memory type {device}")
    name, *numbers = device.split(":")
    if len(numbers) > 1 or not all(number.isdecimal() for number in numbers):
        raise InvalidArgumentError(f"Invalid memory type string {device}")
    if name.upper() not in MemoryType.__members__:
        raise _unconvertible("Memory Type String", name.upper(), "Triton server memory type")
    return MemoryType[name.upper()], int(numbers[0]) if numbers else 0
