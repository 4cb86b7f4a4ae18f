"""Conversion between tensors and DLPack capsules without copying elements.

NumPy makes and reads the capsules, because its destructors are C code that still runs while the
interpreter shuts down. Three cases need more than NumPy: bool (in old releases) and bfloat16 are
passed to NumPy as unsigned integers of the same width, and the type code in the capsule is changed.
Read-only arrays are passed as writable views of their memory, since this version of DLPack has no
read-only flag.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from reference_server.backends.python_host.api.native import TritonModelException
from reference_server.core.tensor import Array, DataType

if TYPE_CHECKING:
    from typing import TypeAlias  # not in Python 3.9

#: The type of capsules, for which Python has no name before 3.13.
Capsule: TypeAlias = object

# Device types of DLPack.
CPU = 1
_CUDA = 2
_CUDA_HOST = 3

# Type codes of DLPack.
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

_DATATYPES = {
    (_BOOL, 8): DataType.BOOL,
    (_UINT, 8): DataType.UINT8,
    (_UINT, 16): DataType.UINT16,
    (_UINT, 32): DataType.UINT32,
    (_UINT, 64): DataType.UINT64,
    (_INT, 8): DataType.INT8,
    (_INT, 16): DataType.INT16,
    (_INT, 32): DataType.INT32,
    (_INT, 64): DataType.INT64,
    (_FLOAT, 16): DataType.FP16,
    (_FLOAT, 32): DataType.FP32,
    (_FLOAT, 64): DataType.FP64,
    (_BFLOAT, 16): DataType.BF16,
}
#: The type codes that are replaced before NumPy sees a capsule.
_DISGUISED = {DataType.BOOL: _BOOL, DataType.BF16: _BFLOAT}


class _Type(ctypes.Structure):
    """DLPack's DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Head(ctypes.Structure):
    """The first fields of DLTensor, which is at the start of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type", _Type),
    )


_NAME = b"dltensor"
# Separate prototypes: the functions in ctypes.pythonapi are shared by the process, and other code
# may set other types.
_ARGUMENTS = (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, *_ARGUMENTS)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.POINTER(_Head), *_ARGUMENTS)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Adapter:
    """A producer for NumPy that returns an existing capsule."""

    def __init__(self, capsule: Capsule) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> Any:  # noqa: ANN401 - NumPy's stubs name a newer type
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)


class _Memory:
    """The memory of an array without its read-only flag. Keeps the array alive."""

    def __init__(self, array: Array) -> None:
        interface: dict[str, Any] = array.__array_interface__
        address, _ = interface["data"]
        self.__array_interface__ = {**interface, "data": (address, False)}
        self._array = array


def export(array: Array, datatype: DataType) -> Capsule:
    """Return a capsule of the elements of `array`; `datatype` is not BYTES."""
    code = _DISGUISED.get(datatype)
    if code is not None:
        array = array.view(f"u{array.itemsize}")
    capsule: Capsule = np.asarray(_Memory(array)).__dlpack__()
    if code is not None:
        _get_pointer(capsule, _NAME).contents.type.code = code
    return capsule


def consume(source: object) -> tuple[Array, DataType]:
    """Return the elements of a capsule or producer as a writable array, and their data type.

    BF16 elements are returned as their bits in uint16.

    Raises:
        TritonModelException: `source` is neither a capsule nor a producer, or its elements are not
            in host memory, not C-contiguous, or of a type that Triton lacks.
    """
    capsule = source if _is_valid(source, _NAME) else _produced(source)
    head = _get_pointer(capsule, _NAME).contents
    _check_device(head.device_type)
    datatype = _DATATYPES.get((head.type.code, head.type.bits)) if head.type.lanes == 1 else None
    if datatype is None:
        raise TritonModelException("Dtype is invalid.")
    if datatype in _DISGUISED:
        head.type.code = _UINT
    array = np.asarray(_Memory(np.from_dlpack(_Adapter(capsule))))
    if not array.flags.c_contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. "
            "Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    return array.view(datatype.numpy), datatype


def host_copy(source: object) -> object | None:
    """Return a copy in host memory if `source` is a producer in GPU memory, else None.

    The producer's method `cpu`, which torch's tensors have, makes the copy; DLPack's own way of
    copying is too new to rely on. A capsule has no such method, so `consume` refuses its device.
    """
    if _is_valid(source, _NAME) or not hasattr(source, "__dlpack_device__"):
        return None
    device_type, _ = source.__dlpack_device__()
    copy: object = source.cpu() if device_type == _CUDA and hasattr(source, "cpu") else None
    return copy


def _produced(source: Any) -> Capsule:  # noqa: ANN401 - any value of the model
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule"
            "         or have `__dlpack__` and `__dlpack_device__` attributes"
        )
    device_type, _ = source.__dlpack_device__()
    _check_device(device_type)
    return source.__dlpack__()


def _check_device(device_type: int) -> None:
    if device_type not in (CPU, _CUDA_HOST):
        raise TritonModelException(
            f"DLDevice type {int(device_type)} is not support by Python backend."
        )
