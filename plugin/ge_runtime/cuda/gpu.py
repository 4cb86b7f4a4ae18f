"""The GPUs of this process: each opened once, and known to all who use it when it is lost."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from ge_runtime.cuda.driver import Context, CudaDriver, CudaFault
from ge_runtime.devices.health import DeviceHealth
from ge_runtime.errors import EngineFault, EngineLost, NoDevice, OutOfMemory, RuntimeFault

CAPTURING: Final = Lock()
"""Held while a stream is captured, in all of the process one at a time: whoever waits meanwhile for
all that happens on a GPU breaks the capture."""

_OF_CAPTURES: Final = range(900, 910)
"""Codes of what is not allowed while a stream is captured: they say nothing of the device."""


class Gpu:
    """One of them. Safe from any thread."""

    def __init__(self, index: int, context: Context) -> None:
        self.index: Final = index
        self.name: Final = f"cuda:{index}"
        self.context: Final = context
        self.hardware: Final = context.hardware
        self.health: Final = DeviceHealth()
        self._streams: list[int] = []  # that nobody has

    def take_stream(self) -> int:
        """The handle of a stream that nobody else has, until `give_stream`. Raises CudaFault.

        torch has 32 for all who ask, one after the other: what one engine executes would be in what
        another records on the same. None is destroyed, as libraries keep memory for each.
        """
        return self._streams.pop() if self._streams else self.context.new_stream()

    def give_stream(self, handle: int) -> None:
        """The caller no longer uses it, and all that was queued there is done."""
        self._streams.append(handle)

    def fault(self, text: str, *, short: bool) -> RuntimeFault:
        """What a failed execution means: EngineLost, OutOfMemory or EngineFault.

        text: what the library said. short: whether that was of memory. An illegal address, a failed
        assertion on the device and the like break the context for good: the driver is asked, as
        libraries tell it in words of their own or not at all. Waits for what executes there.
        """
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
    """Those of a process, opened when they are asked for. Safe from any thread."""

    def __init__(self, load: Callable[[], CudaDriver] = CudaDriver.load) -> None:
        self._load = load
        self._driver: CudaDriver | None = None
        self._open: dict[int, Gpu] = {}
        self._lock = Lock()

    def gpu(self, index: int) -> Gpu:
        """Raises NoDevice, with the cure, if it is not there, and EngineLost if it was lost."""
        with self._lock:
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
