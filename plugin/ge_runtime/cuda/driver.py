"""NVIDIA's driver by its C interface, libcuda.so.1: the little that engines do not do themselves.

All values are plain. Each call takes microseconds, except the first and `wait`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from ge_runtime.errors import NoDevice

# A ctypes library, whose functions come without types.
Library: TypeAlias = Any

_FILE: Final = "libcuda.so.1"
_CURE: Final = "install NVIDIA's driver on the host; in a container `docker run --gpus all`"
_NAME_BYTES: Final = 256
_PORTABLE: Final = 1
"""CU_MEMHOSTREGISTER_PORTABLE: pinned for all contexts."""
_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING: it waits for nothing that happens on the default stream."""


class CudaFault(Exception):
    """A call that failed, with the driver's own code, name and words."""

    def __init__(self, call: str, code: int, name: str, words: str) -> None:
        self.code = code
        super().__init__(f"{call}: {name} ({code}): {words}")


class Context:
    """A device's primary context: the one that libraries of CUDA's runtime share in a process."""

    def __init__(self, driver: CudaDriver, index: int) -> None:
        """Takes it, for as long as the process lives. Raises CudaFault."""
        self._driver = driver
        self._device = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(index))
        self._handle = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._handle), self._device)

    @property
    def hardware(self) -> str:
        """What the device is called, e.g. "NVIDIA H100 80GB HBM3"."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._driver.call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), self._device)
        return name.value.decode(errors="replace")

    def pin(self, address: int, nbytes: int) -> None:
        """Pin memory of the process: copies of it need no detour. Raises CudaFault."""
        with self._current():
            self._driver.call(
                "cuMemHostRegister_v2",
                ctypes.c_void_p(address),
                ctypes.c_size_t(nbytes),
                ctypes.c_uint(_PORTABLE),
            )

    def unpin(self, address: int) -> None:
        """Undo `pin`. Raises CudaFault."""
        with self._current():
            self._driver.call("cuMemHostUnregister", ctypes.c_void_p(address))

    def new_stream(self) -> int:
        """The handle of a stream, there for as long as the process lives. Raises CudaFault."""
        handle = ctypes.c_void_p()
        with self._current():
            self._driver.call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(_NON_BLOCKING))
        return handle.value or 0

    def wait(self) -> None:
        """Wait for all work on the device. Raises CudaFault, for ever, once some of it broke it."""
        with self._current():
            self._driver.call("cuCtxSynchronize")

    @contextmanager
    def _current(self) -> Iterator[None]:
        """For the length of a `with`, in the calling thread, whatever is current there."""
        self._driver.call("cuCtxPushCurrent_v2", self._handle)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class CudaDriver:
    """The library, begun. Safe from any thread."""

    def __init__(self, library: Library) -> None:
        """Raises CudaFault. See `load`."""
        self._library = library
        self.call("cuInit", ctypes.c_uint(0))

    @classmethod
    def load(cls) -> CudaDriver:
        """Raises NoDevice, with the cure, where there is no driver or none that works."""
        try:
            return cls(ctypes.CDLL(_FILE))
        except OSError as error:
            raise NoDevice(
                f"cuda: found no driver ({error}), expected NVIDIA's: {_CURE}"
            ) from error
        except CudaFault as fault:
            raise NoDevice(
                f"cuda: found a driver that does not begin ({fault}), expected it to: `nvidia-smi` "
                f"says how it is; {_CURE}"
            ) from fault

    def device_count(self) -> int:
        """Devices that this process may use: CUDA_VISIBLE_DEVICES counts."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def call(self, function: str, *arguments: object) -> None:
        """Call a function of the library. Raises CudaFault unless it succeeds."""
        code: int = getattr(self._library, function)(*arguments)
        if code:
            name, words = self._told("cuGetErrorName", code), self._told("cuGetErrorString", code)
            raise CudaFault(function, code, name, words)

    def _told(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        getattr(self._library, function)(ctypes.c_int(code), ctypes.byref(text))
        return (text.value or b"unknown").decode(errors="replace")
