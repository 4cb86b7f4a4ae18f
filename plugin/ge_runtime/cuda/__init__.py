"""NVIDIA GPUs of this process: the driver through its C interface, and pinned host memory.

ONNX Runtime and torch execute on the GPU, and create their own contexts, streams and memory. Only
functions of the driver (libcuda.so.1) that these libraries do not provide are called. Each call
takes microseconds, except the first call and `wait`. Written from NVIDIA's documentation, and never
run on a GPU: the tests use a fake of the driver's library.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import PAGE, DeviceHealth, Watch, WatchedHost
from ge_runtime.errors import EngineFault, EngineLost, NoDevice, OutOfMemory, RuntimeFault

# A ctypes library, whose functions have no types.
Library: TypeAlias = Any

_log = logging.getLogger(__name__)

_FILE: Final = "libcuda.so.1"
_CURE: Final = "install NVIDIA's driver on the host; in a container `docker run --gpus all`"
_NAME_BYTES: Final = 256
_PORTABLE: Final = 1
"""CU_MEMHOSTREGISTER_PORTABLE: pinned for all contexts."""
_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING: the stream does not synchronize with the default stream."""


class CudaFault(Exception):
    """A failed call of the driver."""

    def __init__(self, call: str, code: int, name: str, message: str) -> None:
        self.code = code
        super().__init__(f"{call}: {name} ({code}): {message}")


class Context:
    """A device's primary context, which all users of the CUDA runtime in a process share."""

    def __init__(self, driver: CudaDriver, index: int) -> None:
        """Retain the context for the lifetime of the process. Raises CudaFault."""
        self._driver = driver
        self._device = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(index))
        self._handle = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._handle), self._device)

    @property
    def hardware(self) -> str:
        """The device's name, e.g. "NVIDIA H100 80GB HBM3"."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._driver.call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), self._device)
        return name.value.decode(errors="replace")

    def pin(self, address: int, nbytes: int) -> None:
        """Pin memory of the process, so that the GPU copies it directly. Raises CudaFault."""
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
        """Create a stream that is never destroyed; return its handle. Raises CudaFault."""
        handle = ctypes.c_void_p()
        with self._current():
            self._driver.call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(_NON_BLOCKING))
        return handle.value or 0

    def wait(self) -> None:
        """Wait for all work on the device.

        Raises CudaFault if work broke the context; every later call raises it as well.
        """
        with self._current():
            self._driver.call("cuCtxSynchronize")

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the context current in the calling thread, within a `with` statement."""
        self._driver.call("cuCtxPushCurrent_v2", self._handle)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class CudaDriver:
    """NVIDIA's driver, initialized. Thread-safe."""

    def __init__(self, library: Library) -> None:
        """Initialize the driver; see `load`. Raises CudaFault."""
        self._library = library
        self.call("cuInit", ctypes.c_uint(0))

    @classmethod
    def load(cls) -> CudaDriver:
        """Load the driver. Raises NoDevice, with the fix, if it is missing or does not work."""
        try:
            return cls(ctypes.CDLL(_FILE))
        except OSError as error:
            raise NoDevice(
                f"cuda: found no driver ({error}), expected NVIDIA's: {_CURE}"
            ) from error
        except CudaFault as fault:
            raise NoDevice(
                f"cuda: found a driver that cannot be initialized ({fault}), expected a working "
                f"one: `nvidia-smi` shows its state; {_CURE}"
            ) from fault

    def device_count(self) -> int:
        """Return the number of devices that are visible to this process (CUDA_VISIBLE_DEVICES)."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def call(self, function: str, *arguments: object) -> None:
        """Call a function of the library. Raises CudaFault unless it succeeds."""
        code: int = getattr(self._library, function)(*arguments)
        if code:
            name, message = self._text("cuGetErrorName", code), self._text("cuGetErrorString", code)
            raise CudaFault(function, code, name, message)

    def _text(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        getattr(self._library, function)(ctypes.c_int(code), ctypes.byref(text))
        return (text.value or b"unknown").decode(errors="replace")


CAPTURING: Final = Lock()
"""Held while a stream is captured. A process may capture only one stream at a time, and waiting for
the whole GPU during a capture breaks the capture."""

_CAPTURE_CODES: Final = range(900, 910)
"""Codes of calls that are not allowed during a capture; they do not mean that the GPU is broken."""


class Gpu:
    """A GPU of this process. Thread-safe."""

    def __init__(self, index: int, context: Context) -> None:
        self.index: Final = index
        self.name: Final = f"cuda:{index}"
        self.context: Final = context
        self.hardware: Final = context.hardware
        self.health: Final = DeviceHealth()
        self._unused_streams: list[int] = []

    def acquire_stream(self) -> int:
        """Return the handle of an unused stream, until `release_stream`. Raises CudaFault."""
        # torch's streams are not used: torch shares 32 streams between all callers, and work of one
        # engine could become part of another engine's capture. Streams are reused and never
        # destroyed, because libraries keep memory for each stream.
        return self._unused_streams.pop() if self._unused_streams else self.context.new_stream()

    def release_stream(self, handle: int) -> None:
        """Return a stream on which all work has ended."""
        self._unused_streams.append(handle)

    def fault(self, text: str, *, no_memory: bool) -> RuntimeFault:
        """See `Accelerator.fault`. Waits for all work on the GPU."""
        # An illegal address or a failed assertion on the device breaks the context permanently.
        # Libraries report such a context in different ways or not at all: the driver is queried.
        if self.health.lost is None:
            try:
                with CAPTURING:
                    self.context.wait()
            except CudaFault as broken:
                if broken.code not in _CAPTURE_CODES:
                    self.health.mark_lost(f"{text}; the GPU is lost to this process: {broken}")
        if self.health.lost is not None:
            return EngineLost(str(self.health.lost))
        return (OutOfMemory if no_memory else EngineFault)(text)


class Gpus:
    """The GPUs of a process. Each GPU is opened at its first use. Thread-safe."""

    def __init__(self, load: Callable[[], CudaDriver] = CudaDriver.load) -> None:
        self._load = load
        self._driver: CudaDriver | None = None
        self._open: dict[int, Gpu] = {}
        self._lock = Lock()

    def gpu(self, index: int) -> Gpu:
        """Return a GPU. Raises NoDevice, with the fix, if it is missing; EngineLost if lost."""
        with self._lock:
            # One object for the process: all users share its health and streams.
            gpu = self._open.get(index)
            if gpu is None:
                gpu = self._open[index] = self._opened(index)
        gpu.health.ensure_available()
        return gpu

    def _opened(self, index: int) -> Gpu:
        driver = self._driver = self._driver or self._load()
        try:
            count = driver.device_count()
            if index < count:
                return Gpu(index, Context(driver, index))
        except CudaFault as fault:
            raise NoDevice(f"cuda:{index} cannot be used: {fault}") from fault
        raise NoDevice(
            f"cuda:{index}: found {count} GPU(s), expected more than {index}: `nvidia-smi` and "
            "CUDA_VISIBLE_DEVICES show which GPUs this process has"
        )


PROCESS_GPUS: Final = Gpus()


class PinnedMemory(WatchedHost):
    """Pinned host memory. Buffers are uint8 arrays [nbytes] in whole pages.

    A buffer is pinned until it is freed; later, its views refer to unpinned memory. If the system
    cannot pin memory, copies are slower.
    """

    kind: ClassVar[str] = "cuda"

    def __init__(self, gpu: Gpu, watch: Watch) -> None:
        """Initialize the memory; `watch` counts the allocations on the device."""
        super().__init__(gpu.name, watch)
        self._gpu = gpu
        self._pinned: dict[int, NDArray[np.uint8]] = {}  # by address; kept alive
        self._warned = False

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Pin whole pages of existing memory of the process, until `unregister`."""
        self._pin(memory)

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Undo `register`. No copy to or from the memory may be in progress."""
        self._unpin(memory)

    def unregister_all(self) -> None:
        """Undo `register` for all registered memory. Safe to call twice."""
        for memory in [*self._pinned.values()]:  # a copy, because `_unpin` removes entries
            self._unpin(memory)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        whole = super()._obtain(-(-nbytes // PAGE) * PAGE)
        if nbytes:
            self._pin(whole)
        return whole[:nbytes]

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """Unpin the memory; it is freed with its last view."""
        self._unpin(memory)

    def _pin(self, memory: NDArray[np.uint8]) -> None:
        try:
            self._gpu.context.pin(memory.ctypes.data, memory.nbytes)
        except CudaFault as fault:
            if not self._warned:
                self._warned = True
                _log.warning("%s: memory is not pinned, copies are slower: %s", self.name, fault)
        else:
            self._pinned[memory.ctypes.data] = memory

    def _unpin(self, memory: NDArray[np.uint8]) -> None:
        """Unpin memory. If that fails, the memory is never freed."""
        address = memory.ctypes.data
        if address not in self._pinned or self._gpu.health.lost is not None:
            return
        try:
            self._gpu.context.unpin(address)
        except CudaFault as fault:  # e.g. a broken GPU that was not detected before
            _log.warning("%s: memory stays pinned: %s", self.name, fault)
        else:
            del self._pinned[address]
