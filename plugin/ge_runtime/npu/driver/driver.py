"""The handles and values of the driver of Ascend devices (`pyacl`). Handles are opaque integers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, NewType

from ge_runtime.config import Aipp

UNKNOWN_CHIP: Final = "unknown"
"""The chip's name if the driver does not report it."""

Context = NewType("Context", int)
Stream = NewType("Stream", int)
Event = NewType("Event", int)
ModelId = NewType("ModelId", int)
Address = NewType("Address", int)


class Copy(Enum):
    """The direction of a copy; the values are those of aclrtMemcpyKind."""

    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3


@dataclass(frozen=True, slots=True)
class Dataset:
    """The driver's object for the buffers of all inputs or all outputs of a model."""

    handle: int
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GearSetting:
    """The gear of the next execution of a model."""

    family: str
    """"batch", "image" or "dims"."""
    values: tuple[int, ...]
    """batch: (rows,). image: (height, width). dims: the sizes in the model's order."""


class Produced(NamedTuple):
    """An output of an execution of a model with free shapes."""

    dims: tuple[int, ...]
    address: Address
    """Device memory of the dataset. If the dataset had none, the driver has allocated it."""


class AippKind(Enum):
    """The AIPP mode of an input; the values are those of aclmdlInputAippType."""

    NONE = 0
    STATIC = 1
    DYNAMIC = 2
    PARAMETERS = 3

    @property
    def words(self) -> str:
        """The name of the mode in error texts."""
        return "no AIPP" if self is AippKind.NONE else f"{self.name.lower()} AIPP"


class ImageBatch(NamedTuple):
    """The parameters of dynamic AIPP for a batch of images."""

    rows: int
    """Number of images at the largest gear."""
    height: int
    width: int
    aipp: Aipp


Channel = NewType("Channel", int)

JPEG_ALIGNMENT: Final = (128, 16)
"""Alignment of the width and height strides of decoded pictures.

Some chips require only 64 for the width.
"""
RESIZE_ALIGNMENT: Final = (16, 2)


class Picture(NamedTuple):
    """A picture in memory of DVPP, in YUV420SP: all brightness rows, then interleaved colours.

    Width and height are even. The colours have half the width and height.
    """

    address: Address
    nbytes: int
    width: int
    height: int
    width_stride: int
    height_stride: int
