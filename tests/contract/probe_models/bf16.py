"""Returns a BF16 tensor unchanged, and by DLPack with one added to its bits.

NumPy has no bfloat16. Elements are read and written as unsigned integers of the same width, by
changing the type in the DLPack capsule.
"""

import ctypes

import numpy as np
import triton_python_backend_utils as pb_utils

UINT, BFLOAT = 1, 4


class Head(ctypes.Structure):
    """The beginning of DLTensor, up to the type's code."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
    )


pointer_of = ctypes.PYFUNCTYPE(ctypes.POINTER(Head), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def retyped(capsule, code):
    pointer_of(capsule, b"dltensor").contents.code = code
    return capsule


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "X")
        bits = pb_utils.Tensor.from_dlpack("bits", retyped(given.to_dlpack(), UINT)).as_numpy()
        more = pb_utils.Tensor("more", bits + np.uint16(1)).to_dlpack()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor.from_dlpack("same", given.to_dlpack()),
                pb_utils.Tensor.from_dlpack("again", given),
                pb_utils.Tensor.from_dlpack("more", retyped(more, BFLOAT)),
            ]
        )
