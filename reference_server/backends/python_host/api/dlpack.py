"""Tensors to and from DLPack capsules, without copying elements.

NumPy makes and reads the capsules, because its destructors are C code that survives the end of
the interpreter. What NumPy refuses is worked around here: bool (in old releases) and bfloat16
travel through it as unsigned integers of the same width, with the type's code changed in the
capsule; read-only arrays travel as writable views of their memory, since capsules of this
generation cannot say `read-only`.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import numpy as np

from reference_server.backends.python_host.api.native import TritonModelException
from reference_server.core.dtypes import DataType
from reference_server.core.tensor import Array

#: Python has no name for its type before 3.13.
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
#: The codes that NumPy is not shown.
_DISGUISED = {DataType.BOOL: _BOOL, DataType.BF16: _BFLOAT}


class _Type(ctypes.Structure):
    """DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Head(ctypes.Structure):
    """The first fields of DLTensor, with which the capsule's DLManagedTensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type", _Type),
    )


_NAME = b"dltensor"
# Prototypes of our own: the functions in ctypes.pythonapi are everybody's, and others give them
# other types.
_ARGUMENTS = (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, *_ARGUMENTS)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.POINTER(_Head), *_ARGUMENTS)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Adapter:
    """Shows NumPy a capsule as an object that produces it."""

    def __init__(self, capsule: Capsule) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> Any:  # noqa: ANN401 - NumPy's stubs name a newer type
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)


class _Memory:
    """The memory of an array, without its read-only flag; keeps the array alive."""

    def __init__(self, array: Array) -> None:
        interface: dict[str, Any] = array.__array_interface__
        address, _ = interface["data"]
        self.__array_interface__ = {**interface, "data": (address, False)}
        self._array = array


def export(array: Array, datatype: DataType) -> Capsule:
    """A capsule of the elements of `array`, which are of `datatype`, BYTES excepted."""
    code = _DISGUISED.get(datatype)
    if code is not None:
        array = array.view(f"u{array.itemsize}")
    capsule: Capsule = np.asarray(_Memory(array)).__dlpack__()
    if code is not None:
        _get_pointer(capsule, _NAME).contents.type.code = code
    return capsule


def consume(source: object) -> tuple[Array, DataType]:
    """The elements of a capsule, or of what an object exports, as a writable array.

    BF16 comes as its bits in uint16. Raises TritonModelException if `source` is neither, if its
    elements are not in the host's memory, not C-contiguous, or of a type that Triton lacks.
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
    """What `source`, which exports memory of a GPU, makes of itself in the host's; else None.

    That is its method `cpu`, as torch has it: DLPack's own way is too new to rely on. A bare
    capsule has none, so its device is refused by `consume`.
    """
    if _is_valid(source, _NAME) or not hasattr(source, "__dlpack_device__"):
        return None
    device_type, _ = source.__dlpack_device__()
    copy: object = source.cpu() if device_type == _CUDA and hasattr(source, "cpu") else None
    return copy


def _produced(source: Any) -> Capsule:  # noqa: ANN401 - whatever the model passed
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
