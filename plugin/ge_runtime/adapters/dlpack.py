"""BF16 tensors to and from Triton, by DLPack: NumPy has no such type.

Inside the runtime BF16 is the array of its bits, uint16. Capsules of uint16 arrays become those of
BF16 and the other way round by an exchange of the type's code. Nothing is copied.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from ge_runtime.errors import RequestFault
from ge_runtime.specs import Array

Capsule: TypeAlias = object

# Type codes and the device of DLPack: https://dmlc.github.io/dlpack/latest/c_api.html
_UINT: Final = 1
_BFLOAT: Final = 4
_CPU: Final = (1, 0)


class _Head(ctypes.Structure):
    """The first fields of a DLManagedTensor, up to the type's."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
    )


# A prototype of our own: the functions in ctypes.pythonapi are everybody's.
_head = ctypes.PYFUNCTYPE(ctypes.POINTER(_Head), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Tensor(Protocol):
    """A tensor of Triton's, `pb_utils.Tensor`."""

    def to_dlpack(self) -> Capsule:
        """A capsule of its memory."""


class _Capsule:
    """A capsule as NumPy wants it."""

    def __init__(self, capsule: Capsule) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(self, *, stream: None = None, **_: object) -> Any:  # noqa: ANN401 - a capsule
        # What else NumPy asks for is about versions, which Triton's capsules lack.
        return self._capsule


def bits_of(name: str, tensor: Tensor) -> Array:
    """A tensor's bits: uint16, of its shape, in its own memory, which they keep alive.

    name: for errors. Raises RequestFault if the tensor is not BF16 in the host's memory.
    """
    capsule = tensor.to_dlpack()
    head = _head(capsule, b"dltensor").contents
    if (head.code, head.bits, head.device_type) != (_BFLOAT, 16, _CPU[0]):
        raise RequestFault(
            f"input '{name}': found DLPack type {head.code} of {head.bits} bits on device type "
            f"{head.device_type}, expected BF16 on the CPU"
        )
    head.code = _UINT
    bits: Array = np.from_dlpack(_Capsule(capsule))
    return bits


def bfloat16_of(bits: Tensor) -> Capsule:
    """A capsule of BF16, of a tensor of its bits, uint16; for `pb_utils.Tensor.from_dlpack`.

    The capsule is Triton's own, because Triton takes no others unharmed: it calls those that it
    has taken `used_dlpack`, a name which the destructors of NumPy's do not know. They complain of
    it, which destroys the capsule once more, and again, until the process dies of a full stack.
    """
    capsule = bits.to_dlpack()
    _head(capsule, b"dltensor").contents.code = _BFLOAT
    return capsule
