"""The port to DVPP, a card's unit for pictures: the calls that decode JPEG files and resize.

Pictures are YUV420SP: brightness row by row, then the two colours in turn, half as many each way.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType, Protocol

from ge_runtime.npu.driver.driver import Address, Stream

Channel = NewType("Channel", int)

JPEG_ALIGNMENT: Final = (128, 16)
"""Strides of what is decoded, across and down: of chips that want 64 across, 128 is as good."""
RESIZE_ALIGNMENT: Final = (16, 2)


class Picture(NamedTuple):
    """A picture in memory of DVPP; its sides are even."""

    address: Address
    nbytes: int
    width: int
    height: int
    width_stride: int
    height_stride: int


class MediaCalls(Protocol):
    """Calls of a thread that has a context of the card. They raise DriverFault."""

    def open_channel(self) -> Channel:
        """What tasks of DVPP are given to."""

    def close_channel(self, channel: Channel) -> None:
        """Free it; none of its tasks is left."""

    def malloc(self, nbytes: int) -> Address:
        """Device memory for files and pictures."""

    def free(self, address: Address) -> None:
        """Give it back, at once."""

    def decoded_bytes(self, host: Address, nbytes: int) -> int:
        """That a file in host memory needs when it is decoded."""

    def decode_and_resize(
        self,
        channel: Channel,
        file: tuple[Address, int],
        decoded: Picture,
        resized: Picture,
        stream: Stream,
    ) -> None:
        """Queue both, and wait in the stream; the file is device memory."""
