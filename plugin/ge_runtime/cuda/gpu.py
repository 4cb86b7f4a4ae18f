"""The GPUs of this process, NVIDIA's driver by its C interface, and pinned memory of the host.

Of the driver, libcuda.so.1, only what ONNX Runtime and torch do not do themselves. Each call takes
microseconds, except the first and `wait`.
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

from ge_runtime.devices import Watch, WatchedHost
from ge_runtime.devices.health import DeviceHealth
from ge_runtime.devices.memory import PAGE
from ge_runtime.errors import EngineFault, EngineLost, NoDevice, OutOfMemory, RuntimeFault

# A ctypes library, whose functions come without types.
Library: TypeAlias = Any

_log = logging.getLogger(__name__)

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
    """NVIDIA's driver, initialized. Safe from any thread."""

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


CAPTURING: Final = Lock()
"""Held while a stream is captured, in all of the process one at a time: whoever waits meanwhile for
all that happens on a GPU breaks the capture."""

_OF_CAPTURES: Final = range(900, 910)
"""Codes of what is not allowed while a stream is captured: they say nothing of the device."""


class Gpu:
    """A GPU of this process. Safe from any thread."""

    def __init__(self, index: int, context: Context) -> None:
        self.index: Final = index
        self.name: Final = f"cuda:{index}"
        self.context: Final = context
        self.hardware: Final = context.hardware
        self.health: Final = DeviceHealth()
        self._streams: list[int] = []  # that nobody has

    def take_stream(self) -> int:
        """The handle of a stream that nobody else has, until `give_stream`. Raises CudaFault."""
        # Not torch's own: it gives 32 in turn to all who ask, and what one engine executes on a
        # stream would be in what another captures there. None is destroyed, but given to the next
        # who asks, as libraries keep memory for each.
        return self._streams.pop() if self._streams else self.context.new_stream()

    def give_stream(self, handle: int) -> None:
        """The caller no longer uses it, and all that was queued there is done."""
        self._streams.append(handle)

    def fault(self, text: str, *, short: bool) -> RuntimeFault:
        """What a failed execution means: EngineLost, OutOfMemory or EngineFault.

        text: what the library said. short: whether that was of memory. Waits for what executes
        there.
        """
        # An illegal address, a failed assertion on the device and the like break the context for
        # good. Libraries tell that in words of their own or not at all, so the driver is asked.
        if self.health.lost is None:
            try:
                with CAPTURING:
                    self.context.wait()
            except CudaFault as broken:
                if broken.code not in _OF_CAPTURES:
                    self.health.lose(f"{text}; the GPU is lost to this process: {broken}")
        if self.health.lost is not None:
            return EngineLost(str(self.health.lost))
        return (OutOfMemory if short else EngineFault)(text)


class Gpus:
    """The GPUs of a process, opened when they are asked for. Safe from any thread."""

    def __init__(self, load: Callable[[], CudaDriver] = CudaDriver.load) -> None:
        self._load = load
        self._driver: CudaDriver | None = None
        self._open: dict[int, Gpu] = {}
        self._lock = Lock()

    def gpu(self, index: int) -> Gpu:
        """Raises NoDevice, with the cure, if it is not there, and EngineLost if it was lost."""
        with self._lock:
            # One for the process: its health and its streams are shared by all who use it.
            gpu = self._open.get(index)
            if gpu is None:
                gpu = self._open[index] = self._opened(index)
        gpu.health.ensure_there()
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
            "CUDA_VISIBLE_DEVICES say which this process has"
        )


PROCESS_GPUS: Final = Gpus()


class PinnedMemory(WatchedHost):
    """Buffers are uint8 arrays [nbytes] in whole pages, pinned as long as the buffer is not freed.

    What is still a view of them then is memory like any other. Where the system cannot pin, copies
    take the detour: slower, and the same.
    """

    kind: ClassVar[str] = "cuda"

    def __init__(self, gpu: Gpu, watch: Watch) -> None:
        """watch: of the allocator on the device, whose defects count as this memory's."""
        super().__init__(gpu.name, watch)
        self._gpu = gpu
        self._pinned: dict[int, NDArray[np.uint8]] = {}  # by address; kept alive
        self._told = False

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Pin memory of the process that is there, until `unregister`. Whole pages."""
        self._pin(memory)

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Undo `register`. No copy to or from the memory is under way any more."""
        self._unpin(memory)

    def unregister_all(self) -> None:
        """Undo `register` for all that is registered. Safe to call twice."""
        for memory in [*self._pinned.values()]:  # a copy: each goes as it is unpinned
            self._unpin(memory)

    def _obtain(self, nbytes: int) -> NDArray[np.uint8]:
        whole = super()._obtain(-(-nbytes // PAGE) * PAGE)
        if nbytes:
            self._pin(whole)
        return whole[:nbytes]

    def _release(self, memory: NDArray[np.uint8]) -> None:
        """The last view of the bytes gives them back."""
        self._unpin(memory)

    def _pin(self, memory: NDArray[np.uint8]) -> None:
        try:
            self._gpu.context.pin(memory.ctypes.data, memory.nbytes)
        except CudaFault as fault:
            if not self._told:
                self._told = True
                _log.warning("%s: memory is not pinned, copies are slower: %s", self.name, fault)
        else:
            self._pinned[memory.ctypes.data] = memory

    def _unpin(self, memory: NDArray[np.uint8]) -> None:
        """What the GPU does not let go of stays with the process."""
        address = memory.ctypes.data
        if address not in self._pinned or self._gpu.health.lost is not None:
            return
        try:
            self._gpu.context.unpin(address)
        except CudaFault as fault:  # as when the GPU broke and nobody has noticed yet
            _log.warning("%s: memory stays pinned: %s", self.name, fault)
        else:
            del self._pinned[address]
