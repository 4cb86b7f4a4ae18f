"""Decoding and resizing of JPEG files by a card's DVPP, in its own context and stream.

Progressive files and sizes that DVPP does not support are decoded on the host.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Final

import numpy as np

from ge_runtime.devices.jpeg import JpegHeader, PillowDecoder, Pixels
from ge_runtime.errors import RuntimeFault
from ge_runtime.npu.driver.device import AscendDevice, DeviceContext
from ge_runtime.npu.driver.driver import (
    JPEG_ALIGNMENT,
    RESIZE_ALIGNMENT,
    Address,
    Copy,
    MediaCalls,
    Picture,
)
from ge_runtime.npu.driver.return_codes import DriverFault, FailureKind

_log = logging.getLogger(__name__)

_LEAST_SIDE: Final = 32
"""Minimum width and height of a file."""
_WIDTHS, _HEIGHTS = range(10, 4097), range(6, 4097)
"""Supported sizes for resizing, before and after."""
_SHRINKS, _GROWS = 32, 16
"""Maximum factors by which a side may shrink or grow."""


class _Block:
    """A block of DVPP's memory that grows on demand."""

    def __init__(self, media: MediaCalls) -> None:
        self._media = media
        self._address = Address(0)
        self._nbytes = 0

    def reserve(self, nbytes: int) -> Address:
        """Return the address of the block, with at least this size."""
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

    def __init__(self, card: AscendDevice, media: MediaCalls, host: PillowDecoder) -> None:
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
            return self._decode(file, header, height, width, channels)
        except DriverFault as fault:
            self._recover(fault)
        # If the file is damaged, the host's decoder reports what is wrong.
        return self._host.decode(file, height, width, channels)

    def close(self) -> None:
        """Free all resources, unless the card is lost. Call once."""
        if self._card.lost is not None:
            return
        self._context.enter()
        for block in (self._file, self._decoded, self._resized):
            block.free()
        self._media.close_channel(self._channel)
        self._card.driver.destroy_stream(self._stream)
        self._context.destroy()

    def _open(self) -> None:
        self._file, self._decoded, self._resized = (_Block(self._media) for _ in range(3))
        driver = self._card.driver
        with ExitStack() as undo:
            self._context = DeviceContext(driver, self._card.number)
            undo.callback(self._context.destroy)
            self._stream = driver.create_stream()
            undo.callback(driver.destroy_stream, self._stream)
            self._channel = self._media.open_channel()
            undo.pop_all()

    def _recover(self, fault: DriverFault) -> None:
        """Reopen DVPP: after a failure its context is invalid. Raises EngineLost."""
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
        self._context.enter()
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
    """Return whether DVPP can decode such a file and resize it to this size."""
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
