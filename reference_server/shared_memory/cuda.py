"""GPU memory of another process, opened by its IPC handle with cuda-python.

cuda-python is imported when the first region is registered. Without it, or without a driver, the
registration is rejected as by Triton on such a machine. Inputs and outputs are copied between
device and host, since models run in host memory here.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from reference_server.core.errors import internal, invalid_arg
from reference_server.core.metadata import CudaRegion

#: The size of a `cudaIpcMemHandle_t`.
HANDLE_BYTES = 64
_LAST_DEVICE = 2**31 - 1


class DriverError(Exception):
    """A driver call failed, or there is no driver; the text has the call and the reason."""


class Driver(Protocol):
    """The required driver calls. Pointers are device addresses. All raise DriverError."""

    def open(self, raw_handle: bytes, device_id: int) -> int:
        """Return the address, on this device, of the allocation that the handle refers to."""

    def size(self, device_id: int, pointer: int) -> int:
        """Return the number of bytes from `pointer` to the end of its allocation."""

    def read(self, device_id: int, pointer: int, host: int, byte_size: int) -> None:
        """Copy from the device to the host address `host`; returns when the copy is complete."""

    def write(self, device_id: int, pointer: int, host: int, byte_size: int) -> None:
        """Copy from the host address `host` to the device; returns when the copy is complete."""

    def close(self, device_id: int, pointer: int) -> None:
        """Close an opened allocation."""


class CudaMemory:
    """The memory of a CUDA region. Thread-safe.

    Raises:
        ServerError: INVALID_ARG if the handle cannot be opened on its device, or if the allocation
            is smaller than the region.
    """

    def __init__(self, region: CudaRegion, raw_handle: bytes, load: Callable[[], Driver]) -> None:
        self._device = region.device_id
        self._name = region.name
        refusal = invalid_arg("failed to register shared memory region: invalid args")
        if (
            len(raw_handle) != HANDLE_BYTES
            or not 0 <= region.device_id <= _LAST_DEVICE
            or not region.byte_size
        ):
            raise refusal
        try:
            self._driver = load()
            self._pointer = self._driver.open(raw_handle, self._device)
            try:
                size = self._driver.size(self._device, self._pointer)
            except DriverError:
                size = 0
            if size < region.byte_size:
                self._driver.close(self._device, self._pointer)
                raise refusal
        except DriverError as error:
            raise refusal from error

    def read(self, offset: int, byte_size: int) -> memoryview:
        copy = np.empty(byte_size, np.uint8)
        if byte_size:
            pointer = self._pointer + offset
            self._call(self._driver.read, pointer, copy.ctypes.data, byte_size)
        return copy.data

    def write(self, offset: int, data: memoryview) -> None:
        if len(data):
            host = np.frombuffer(data, np.uint8)
            self._call(self._driver.write, self._pointer + offset, host.ctypes.data, len(data))

    def close(self) -> None:
        """Close the allocation. Errors are ignored: its process may have ended."""
        with contextlib.suppress(DriverError):
            self._driver.close(self._device, self._pointer)

    def _call(self, call: Callable[..., None], pointer: int, host: int, byte_size: int) -> None:
        try:
            call(self._device, pointer, host, byte_size)
        except DriverError as error:
            raise internal(
                f"shared memory region '{self._name}' on device {self._device} cannot be used: "
                f"{error}"
            ) from error


class CudaPython:
    """The driver calls of NVIDIA's cuda-python."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver, runtime
        except ImportError as error:
            raise DriverError(f"cuda-python cannot be imported: {error}") from error
        self._runtime: Any = runtime
        self._cuda: Any = driver

    def open(self, raw_handle: bytes, device_id: int) -> int:
        """Open the handle with peer access, for memory of another device."""
        self._on(device_id)
        handle = self._runtime.cudaIpcMemHandle_t()
        ctypes.memmove(handle.getPtr(), raw_handle, HANDLE_BYTES)
        peer_access = self._runtime.cudaIpcMemLazyEnablePeerAccess
        (pointer,) = self._checked(self._runtime.cudaIpcOpenMemHandle, handle, peer_access)
        return int(pointer)

    def size(self, device_id: int, pointer: int) -> int:
        self._on(device_id)
        base, size = self._checked(self._cuda.cuMemGetAddressRange, pointer)
        return int(base) + int(size) - pointer

    def read(self, device_id: int, pointer: int, host: int, byte_size: int) -> None:
        self._copy(device_id, host, pointer, byte_size, "cudaMemcpyDeviceToHost")

    def write(self, device_id: int, pointer: int, host: int, byte_size: int) -> None:
        self._copy(device_id, pointer, host, byte_size, "cudaMemcpyHostToDevice")

    def close(self, device_id: int, pointer: int) -> None:
        self._on(device_id)
        self._checked(self._runtime.cudaIpcCloseMemHandle, pointer)

    def _on(self, device_id: int) -> None:
        # Each thread has its own current device. The frontends' threads use it only here.
        self._checked(self._runtime.cudaSetDevice, device_id)

    def _copy(self, device_id: int, target: int, source: int, byte_size: int, kind: str) -> None:
        self._on(device_id)
        direction = getattr(self._runtime.cudaMemcpyKind, kind)
        self._checked(self._runtime.cudaMemcpy, target, source, byte_size, direction)

    @staticmethod
    def _checked(call: Callable[..., Any], *arguments: object) -> Sequence[Any]:
        values: list[Any]
        try:
            code, *values = call(*arguments)
        except RuntimeError as error:  # cuda-python raises it without a driver library
            raise DriverError(f"{call.__name__}: {error}") from error
        if int(code) != 0:
            raise DriverError(f"{call.__name__}: {code.name}")
        return values
