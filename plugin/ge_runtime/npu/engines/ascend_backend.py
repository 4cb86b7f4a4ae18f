"""The device backend of an Ascend card for .om files and AIR graphs, and its JPEG decoder.

The decoder uses DVPP, the card's unit for pictures, in its own context and stream. The host decodes
progressive files, and sizes that DVPP does not support.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.config import DeclaredImages, TimeLimits, Window
from ge_runtime.devices import Device
from ge_runtime.devices.jpeg import JpegHeader, PillowDecoder, Pixels
from ge_runtime.engines.artifact import Artifact, only_graph
from ge_runtime.engines.backend import DeviceSettings
from ge_runtime.engines.base import Engine
from ge_runtime.errors import ArtifactFault, NoDevice, PlanFault, RuntimeFault
from ge_runtime.npu.driver.cann_values import DriverFault, FailureKind
from ge_runtime.npu.driver.card import PROCESS_CARDS, Cards
from ge_runtime.npu.driver.device import AscendDevice
from ge_runtime.npu.driver.driver import JPEG_ALIGNMENT, RESIZE_ALIGNMENT, Address, Copy, Picture
from ge_runtime.npu.driver.installation import open_ge
from ge_runtime.npu.driver.memory import CardMemory, PinnedMemory
from ge_runtime.npu.driver.om_model import ModelFile
from ge_runtime.npu.driver.pyacl import open_media
from ge_runtime.npu.driver.pyacl_models import PyAclMedia
from ge_runtime.npu.engines.captured import Capture, CapturedEngine, Reloadable
from ge_runtime.npu.engines.ge_session import GeSessionEngine
from ge_runtime.npu.engines.om import OmEngine
from ge_runtime.npu.engines.om_files import read_free_shapes
from ge_runtime.npu.engines.om_free import OmFreeEngine
from ge_runtime.specs import Array

_log = logging.getLogger(__name__)

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_IMAGES: Final[Mapping[str, DeclaredImages]] = MappingProxyType({})


class AscendBackend:
    """An Ascend card; engines copy inputs and outputs to and from the card's memory.

    Models of one executor share its workspace and execute one after another; see
    `npu.driver.stream_executor`.
    """

    kind: Final = CardMemory.kind

    def __init__(
        self,
        device: int,
        *,
        executor: int = 0,
        buffers: int = 0,
        workspace_bytes: int | None = None,
        options: Mapping[str, str] = _NO_OPTIONS,
        unplanned: bool = False,
        images: Mapping[str, DeclaredImages] = _NO_IMAGES,
        window: Window | None = None,
        limits: TimeLimits = TimeLimits(),  # noqa: B008 - immutable
        cards: Cards = PROCESS_CARDS,
    ) -> None:
        """Open a card.

        Args:
            device: Number of the card.
            executor: Index of the executor on the card, from 0.
            buffers: Index of the executor's buffer set, from 0.
            workspace_bytes: Size of the workspace that all models of the executor share; None: as
                large as the largest model needs. For a session of GE, the size of its arena.
            options: Options of GE.
            unplanned: Whether files with free shapes may be executed.
            images: Image declarations by input name, for .om files.
            window: The executions of .om files to profile or dump.
            limits: Time limits of executions.
            cards: The cards of the process.

        Raises:
            NoDevice: There is no such card, or it cannot be used.
            PlanFault: The chip does not support the time limits.
            EngineLost: The card was lost before.
        """
        try:
            card = cards.acquire(device, limits)
        except DriverFault as fault:
            raise NoDevice(f"npu:{device} cannot be used: {fault}") from fault
        self.name: Final = card.name
        self.hardware: Final = card.soc_name
        self._card = card
        self._cards = cards
        self._executor = executor
        self._buffers = buffers
        self._workspace_bytes = workspace_bytes
        self._options = options
        self._unplanned = unplanned
        self._images = images
        self._window = window
        self._capture: Capture | None = None
        self._memory = PinnedMemory(card)
        self._device_memory = CardMemory(card)
        self._decoder: DvppDecoder | None = None
        self._closed = False

    @classmethod
    def for_device(cls, device: str, settings: DeviceSettings) -> AscendBackend:
        """Open the backend of the device that config.pbtxt calls `device`."""
        return cls(
            int(device.partition(":")[2]),
            executor=settings.executor,
            buffers=settings.buffers,
            workspace_bytes=settings.workspace_bytes,
            options=settings.compiler_options,
            unplanned=settings.unplanned,
            images=settings.images,
            window=settings.window,
            limits=settings.limits,
        )

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        """Pinned host memory, which the card copies asynchronously."""
        return self._memory

    @property
    def device_memory(self) -> Device[Address]:
        """Memory of the card that belongs to the engines of this backend."""
        return self._device_memory

    @property
    def shared_memory(self) -> Device[Address]:
        """Memory of the card for weights and workspace of all models in this process."""
        return self._card.memory

    @property
    def memories(self) -> tuple[Device[Any], ...]:
        return self.memory, self.device_memory, self.shared_memory

    def fault(self) -> str:
        return self._card.watch.status().fault

    def telemetry(self) -> dict[str, float]:
        status = self._card.watch.status()
        gauges: dict[str, float] = {"device_unwell": bool(status.fault)}
        if not status.fault:
            gauges["device_free_bytes"] = status.free_bytes
            gauges["device_total_bytes"] = status.total_bytes
            gauges |= {f"device_{unit}_percent": each for unit, each in status.percent.items()}
        return gauges

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """See `DeviceBackend.open`. Only .om files may be several stages."""
        if all(artifact.engine == "om" for artifact in artifacts):
            paths = [artifact.path for artifact in artifacts]
            if self._window is None:
                return self._open_om(paths, outputs)
            self._capture = Capture(self._window, self._card)
            self._capture.prepare()
            try:
                return CapturedEngine(self._open_om(paths, outputs), self._capture)
            except BaseException:
                self._capture.end(None)
                raise
        artifact = only_graph(artifacts, self.name)
        if artifact.engine == "ge_session":
            return self._open_session(artifact, outputs)
        raise ArtifactFault(
            f"{artifact.path}: found placement: service for engine {artifact.engine}, expected "
            "placement: local: the device service executes only .om files on a card"
        )

    def _open_om(self, paths: Sequence[Path], outputs: Sequence[str]) -> Reloadable:
        if self._unplanned and len(paths) == 1:
            free = read_free_shapes(paths[0], self._card)
            if free is not None:
                return self._open_free_shapes(free)
        return OmEngine.open(
            paths,
            self._card,
            self._device_memory,
            executor=self._executor,
            buffers=self._buffers,
            workspace_bytes=self._workspace_bytes,
            pinned=self._memory,
            outputs=outputs,
            images=self._images,
        )

    def _open_free_shapes(self, file: ModelFile) -> Reloadable:
        if self._buffers:
            raise PlanFault(
                f"{file.path}: found io_buffers, expected none: the file was compiled for ranges "
                "of sizes, so copies cannot overlap with its executions"
            )
        if self._images:
            raise PlanFault(
                f"{file.path}: found images ({', '.join(self._images)}), expected none: the file "
                "was compiled for ranges of sizes, and AIPP requires gears"
            )
        return OmFreeEngine.open(file, self._card, self._device_memory)

    def _open_session(self, artifact: Artifact, outputs: Sequence[str]) -> Engine:
        if self._buffers:
            raise PlanFault(
                f"{artifact.path}: found io_buffers, expected none: copies can only overlap with "
                "executions of .om files"
            )
        if self._workspace_bytes is None:
            raise PlanFault(
                f"{artifact.path}: found no 'workspace_pool_mib', expected this parameter and "
                "placement: local: GE does not report what a graph needs, and allocates from an "
                "arena of this size; when the model is closed, the log has the size that was used"
            )
        return GeSessionEngine.open(
            artifact.path,
            self._card,
            self._device_memory,
            open_ge(),
            outputs,
            arena_bytes=self._workspace_bytes,
            options=self._options,
        )

    def allocate_rows(self, nbytes: int) -> tuple[int, Callable[[], None]]:
        """Allocate memory of the card."""
        buffer = self._device_memory.allocate("resident", nbytes)
        return int(buffer.memory), buffer.free

    def jpeg_decoder(self, host: PillowDecoder) -> DvppDecoder | None:
        """Return a decoder that uses DVPP; None if pyACL or the chip has no DVPP."""
        media = open_media()
        if media is not None and self._decoder is None:
            try:
                self._decoder = DvppDecoder(self._card, media, host)
            except DriverFault as fault:
                _log.warning("%s: DVPP cannot be used: %s", self.name, fault)
        return self._decoder

    def register(self, memory: Array) -> None:
        """Pin the pages of the memory."""
        self._memory.register(memory)

    def unregister(self, memory: Array) -> None:
        self._memory.unregister(memory)

    def freeze(self) -> None:
        if self._capture is not None:
            self._capture.serve()
        self._memory.freeze()
        self._device_memory.freeze()

    def close(self) -> None:
        """Free the memory and release the card; a lost card is not called."""
        if self._closed:
            return
        self._closed = True
        with self._card.releasing():
            if self._decoder is not None:
                self._decoder.close()
            self._device_memory.free_all()
            self._memory.free_all()
            self._memory.unregister_all()
        self._cards.release(self._card)  # last: freeing memory needs the card's context


_LEAST_SIDE: Final = 32
"""Minimum width and height of a file."""
_WIDTHS, _HEIGHTS = range(10, 4097), range(6, 4097)
"""Supported sizes before and after resizing."""
_SHRINKS, _GROWS = 32, 16
"""Maximum factors by which a side may shrink or grow."""


class _Block:
    """A block of DVPP's memory that grows on demand."""

    def __init__(self, media: PyAclMedia) -> None:
        self._media = media
        self._address = Address(0)
        self._nbytes = 0

    def reserve(self, nbytes: int) -> Address:
        """Return the address of the block, which has at least `nbytes` now."""
        if nbytes > self._nbytes:
            self.free()
            self._address = self._media.malloc(nbytes)
            self._nbytes = nbytes
        return self._address

    def free(self) -> None:
        if self._nbytes:
            self._nbytes = 0
            self._media.free(self._address)


class DvppDecoder:
    """A decoder that uses DVPP. Not thread-safe. Opened and closed by the card's backend."""

    def __init__(self, card: AscendDevice, media: PyAclMedia, host: PillowDecoder) -> None:
        """Open DVPP; `host` decodes files that DVPP does not support. Raises DriverFault."""
        self._card = card
        self._media = media
        self._host = host
        self.name: Final = f"DVPP of {card.name}"
        self._open()

    def decode(self, file: bytes, height: int, width: int, channels: int) -> Pixels:
        header = self._host.header(file)
        if not _is_supported(header, height, width):
            return self._host.decode(file, height, width, channels)
        self._card.ensure_available()
        try:
            with self._context.current():
                return self._decode(file, header, height, width, channels)
        except DriverFault as fault:
            self._recover(fault)
        # If the file is damaged, the host's decoder reports what is wrong.
        return self._host.decode(file, height, width, channels)

    def close(self) -> None:
        """Free all resources, unless the card is lost. Call once."""
        if self._card.lost is not None:
            return
        with self._context.current():
            for block in (self._file, self._decoded, self._resized):
                block.free()
            self._media.close_channel(self._channel)
            self._card.driver.destroy_stream(self._stream)
        self._context.destroy()

    def _open(self) -> None:
        self._file, self._decoded, self._resized = (_Block(self._media) for _ in range(3))
        driver = self._card.driver
        self._context = self._card.new_context()
        with self._context.current(), ExitStack() as undo:
            undo.callback(self._context.destroy)
            self._stream = driver.create_stream()
            undo.callback(driver.destroy_stream, self._stream)
            self._channel = self._media.open_channel()
            undo.pop_all()

    def _recover(self, fault: DriverFault) -> None:
        """Reopen DVPP, because its context is invalid after a failure. Raises EngineLost."""
        if fault.kind is FailureKind.LOST:
            raise self._lost(fault) from fault
        _log.warning("%s: reopened after a file could not be decoded: %s", self.name, fault)
        try:
            self.close()
            self._open()
        except DriverFault as again:
            raise self._lost(again) from again

    def _lost(self, fault: DriverFault) -> RuntimeFault:
        return self._card.mark_lost(f"{self.name}: {fault}")

    def _decode(
        self, file: bytes, header: JpegHeader, height: int, width: int, channels: int
    ) -> Pixels:
        driver, media = self._card.driver, self._media
        host = Address(np.frombuffer(file, np.uint8).ctypes.data)
        nbytes = len(file)
        copied = self._file.reserve(nbytes)
        driver.copy(copied, nbytes, host, nbytes, Copy.TO_DEVICE)
        sides = header.width // 2 * 2, header.height // 2 * 2
        least = media.decoded_bytes(host, nbytes)
        big = _picture(self._decoded, *sides, JPEG_ALIGNMENT, least)
        small = _picture(self._resized, width, height, RESIZE_ALIGNMENT, 0)
        media.decode_and_resize(self._channel, (copied, nbytes), big, small, self._stream)
        whole = np.empty(small.nbytes, np.uint8)
        target = Address(whole.ctypes.data)
        driver.copy(target, whole.nbytes, small.address, whole.nbytes, Copy.TO_HOST)
        stride = small.width_stride
        rows = whole[: stride * small.height_stride].reshape(-1, stride)
        y = rows[:height, :width]
        if channels == 1:
            return np.ascontiguousarray(y)[..., None]
        pairs = whole[stride * small.height_stride :].reshape(-1, stride // 2, 2)
        return self._host.colours(y, pairs[: height // 2, : width // 2])


def _is_supported(header: JpegHeader, height: int, width: int) -> bool:
    """Return whether DVPP can decode a file with this header and resize the picture."""
    wide, high = header.width // 2 * 2, header.height // 2 * 2
    return (
        not header.is_progressive
        and header.components in (1, 3)
        and min(wide, high) >= _LEAST_SIDE
        and width % 2 == height % 2 == 0
        and all(side in _WIDTHS for side in (wide, width))
        and all(side in _HEIGHTS for side in (high, height))
        and all(
            new * _SHRINKS >= old and new <= old * _GROWS
            for old, new in ((wide, width), (high, height))
        )
    )


def _picture(
    block: _Block, width: int, height: int, alignment: tuple[int, int], least: int
) -> Picture:
    across, down = alignment
    stride, rows = -(-width // across) * across, -(-height // down) * down
    nbytes = max(stride * rows * 3 // 2, least)
    return Picture(block.reserve(nbytes), nbytes, width, height, stride, rows)
