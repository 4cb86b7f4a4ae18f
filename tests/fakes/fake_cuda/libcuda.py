"""NVIDIA's driver as its library, with C's own types: what a wrong argument would break, it does.

Two devices whose state is the fake GPU's.
"""

import ctypes
import threading
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p

_ERRORS = {
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    710: ("CUDA_ERROR_ASSERT", "device-side assert triggered"),
    712: ("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of it is already registered"),
    713: ("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer is not a registered memory region"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    900: ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when stream is capturing"),
}
_HANDLE = 0x1000
"""The handle of the first device's context."""


class Library:
    """libcuda.so.1."""

    def __init__(self, machine, devices=2, begins_with=0):
        """begins_with: what cuInit returns."""
        self._machine = machine
        self._devices = devices
        self._begun = False
        self.streams = 0
        self._contexts = threading.local()
        self._kept = {code: tuple(map(str.encode, both)) for code, both in _ERRORS.items()}

        def function(*types):
            return lambda body: CFUNCTYPE(c_int, *types)(body)

        @function(c_uint)
        def cuInit(flags):
            self._begun = not begins_with
            return begins_with

        @function(POINTER(c_int))
        def cuDeviceGetCount(count):
            count[0] = self._devices
            return 0 if self._begun else 3

        @function(POINTER(c_int), c_int)
        def cuDeviceGet(device, ordinal):
            device[0] = ordinal
            return 0 if ordinal < self._devices else 101

        @function(c_void_p, c_int, c_int)
        def cuDeviceGetName(name, nbytes, device):
            ctypes.memmove(name, b"fake of a GPU\0", 14)
            return 0

        @function(POINTER(c_void_p), c_int)
        def cuDevicePrimaryCtxRetain(context, device):
            context[0] = _HANDLE + device
            return 0

        @function(c_void_p)
        def cuCtxPushCurrent_v2(context):
            self._stack().append(context)
            return 0

        @function(POINTER(c_void_p))
        def cuCtxPopCurrent_v2(context):
            if not self._stack():
                return 201
            context[0] = self._stack().pop()
            return 0

        @function(POINTER(c_void_p), c_uint)
        def cuStreamCreate(stream, flags):
            if code := self._well():
                return code
            self.streams += 1
            stream[0] = 0x100 * self.streams
            return 0

        @function()
        def cuCtxSynchronize():
            if self._machine.capture is not None:
                return 900
            return self._well()

        @function(c_void_p, c_size_t, c_uint)
        def cuMemHostRegister_v2(address, nbytes, flags):
            if code := self._well():
                return code
            if not self._machine.pins:
                return 801
            pinned = self._machine.pinned
            if any(a < address + nbytes and address < a + n for a, n in pinned.items()):
                return 712
            pinned[address] = nbytes
            return 0

        @function(c_void_p)
        def cuMemHostUnregister(address):
            if code := self._well():
                return code
            return 713 if self._machine.pinned.pop(address, None) is None else 0

        @function(c_int, POINTER(c_char_p))
        def cuGetErrorName(code, text):
            text[0] = self._kept[code][0]
            return 0

        @function(c_int, POINTER(c_char_p))
        def cuGetErrorString(code, text):
            text[0] = self._kept[code][1]
            return 0

        for name, body in locals().copy().items():
            if name.startswith("cu"):
                setattr(self, name, body)

    def _stack(self):
        if not hasattr(self._contexts, "stack"):
            self._contexts.stack = []
        return self._contexts.stack

    def _well(self):
        """Return the code of calls on a context: the error that broke it, or success."""
        if not self._stack():
            return 201
        return 710 if self._machine.lost is not None else 0
