"""AIPP, image preprocessing on a card: its parameters, and the computation on an image.

The steps are those of ATC's guide: the first and the last channel are swapped, the crop is cut out,
colors are converted, (pixel - mean - min) * var is rounded to FP16, and zeros are added as padding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]
Half: TypeAlias = NDArray[np.float16]


class InputFormat(IntEnum):
    """The simulated values of aclAippInputFormat."""

    YUV420SP_U8 = 1
    RGB888_U8 = 3
    YUV400_U8 = 4


class InputType(IntEnum):
    """aclmdlInputAippType."""

    ACL_DATA_WITHOUT_AIPP = 0
    ACL_DATA_WITH_STATIC_AIPP = 1
    ACL_DATA_WITH_DYNAMIC_AIPP = 2
    ACL_DYNAMIC_AIPP_NODE = 3


CHANNELS: Final = {InputFormat.YUV420SP_U8: 3, InputFormat.RGB888_U8: 3, InputFormat.YUV400_U8: 1}
_FRAME_BYTES: Final = {
    InputFormat.YUV420SP_U8: 1.5,
    InputFormat.RGB888_U8: 3.0,
    InputFormat.YUV400_U8: 1.0,
}

LARGEST_HALF: Final = 65504.0
"""The largest finite FP16 number."""
MOST_PADDED_WIDTH: Final = 1080

YUV_TO_BGR: Final = (298, 516, 0, 298, -100, -208, 298, 0, 409)
RGB_TO_YUV: Final = (66, 129, 25, -38, -74, 112, 112, -94, -18)
"""The default matrices of color conversions, by rows."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The parameters of one image of a batch."""

    crop: tuple[int, int, int, int] | None = None
    """Left, top, width, height."""
    padding: tuple[int, int, int, int] | None = None
    """Top, bottom, left, right."""
    mean: tuple[int, ...] = (0, 0, 0, 0)
    low: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    """`min_chn`."""
    factor: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    """`var_reci_chn`."""
    scales: bool = False
    """True if resizing is requested, which no release supports."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of the result."""
        if self.crop is not None:
            _, _, width, height = self.crop
        top, bottom, left, right = self.padding or (0, 0, 0, 0)
        return width + left + right, height + top + bottom


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a batch of images."""

    input_format: int = 0
    """An aclAippInputFormat; 0 if not set."""
    width: int = 0
    height: int = 0
    csc: bool = False
    swaps: bool = False
    swaps_x: bool = False
    matrix: tuple[int, ...] = (0,) * 9
    output_bias: tuple[int, ...] = (0, 0, 0)
    input_bias: tuple[int, ...] = (0, 0, 0)
    frames: tuple[Frame, ...] = (Frame(),)
    """One frame for each image, or one frame for all images."""

    @property
    def channels(self) -> int:
        """The number of channels of the result."""
        return CHANNELS[InputFormat(self.input_format)]

    def frame_bytes(self, width: int, height: int) -> int:
        """Return the bytes of one image of this width and height."""
        return int(_FRAME_BYTES[InputFormat(self.input_format)] * width * height)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Parameters:
        """Make parameters from the JSON of `dataclasses.asdict`."""

        def tupled(value: object) -> object:
            return tuple(map(tupled, value)) if isinstance(value, list) else value

        def plain(own: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tupled(value) for name, value in own.items() if name != "frames"}

        frames = tuple(Frame(**plain(frame)) for frame in fields["frames"])
        return cls(**plain(fields), frames=frames)


def preprocess(raw: Pixels, count: int, width: int, height: int, parameters: Parameters) -> Half:
    """Convert the first `count` images in `raw`; return [count, channels, height, width]."""
    nbytes = parameters.frame_bytes(width, height)
    return np.stack(
        [
            _preprocess(
                raw[index * nbytes : (index + 1) * nbytes],
                width,
                height,
                parameters,
                parameters.frames[min(index, len(parameters.frames) - 1)],
            )
            for index in range(count)
        ]
    )


def _preprocess(raw: Pixels, width: int, height: int, parameters: Parameters, frame: Frame) -> Half:
    pixels = _opened(raw, width, height, parameters)
    if frame.crop is not None:
        left, top, wide, high = frame.crop
        pixels = pixels[top : top + high, left : left + wide]
    if parameters.csc:
        pixels = _converted(pixels, parameters)
    channels = pixels.shape[2]
    # min and var are FP16 on a card; mean is an integer.
    mean, low, factor = (
        np.array(values[:channels], np.float16).astype(np.float32)
        for values in (frame.mean, frame.low, frame.factor)
    )
    values = ((pixels.astype(np.float32) - mean - low) * factor).astype(np.float16)
    top, bottom, left, right = frame.padding or (0, 0, 0, 0)
    return np.pad(np.moveaxis(values, 2, 0), ((0, 0), (top, bottom), (left, right)))


def _opened(raw: Pixels, width: int, height: int, parameters: Parameters) -> Pixels:
    """Return the pixels, [height, width, channels], with channels swapped if requested."""
    if parameters.input_format == InputFormat.YUV420SP_U8:
        y = raw[: width * height].reshape(height, width, 1)
        halves = raw[width * height :].reshape(height // 2, width // 2, 2)
        uv = halves[..., ::-1] if parameters.swaps else halves
        return np.concatenate([y, uv.repeat(2, 0).repeat(2, 1)], 2)
    pixels = raw.reshape(height, width, parameters.channels)
    return pixels[..., ::-1] if parameters.swaps else pixels


def _converted(pixels: Pixels, parameters: Parameters) -> Pixels:
    """Apply the color matrix, in integer arithmetic."""
    values = pixels.astype(np.int32)
    matrix = np.array(parameters.matrix, np.int32).reshape(3, 3)
    if parameters.input_format == InputFormat.YUV420SP_U8:
        converted = (values - np.array(parameters.input_bias)) @ matrix.T >> 8
    else:
        converted = (values @ matrix.T >> 8) + np.array(parameters.output_bias)
    limited: Pixels = converted.clip(0, 255).astype(np.uint8)
    return limited


# -- the layout of dynamic AIPP in device memory -------------------------------------------------

_HEAD: Final = struct.Struct("<B4b3x2i9h6x6B18x")
_FRAME: Final = struct.Struct("<4b4x8i4i4h4e4e16x")
"""The part of kAippDynamicPara before the first image, and kAippDynamicBatchPara."""


def data_bytes(count: int) -> int:
    """Return the bytes of the parameters of a batch of `count` images."""
    return _HEAD.size + count * _FRAME.size


def pack(parameters: Parameters) -> bytes:
    """Return the parameters in the card's binary layout."""
    head = _HEAD.pack(
        parameters.input_format,
        parameters.csc,
        parameters.swaps,
        parameters.swaps_x,
        len(parameters.frames),
        parameters.width,
        parameters.height,
        *parameters.matrix,
        *parameters.output_bias,
        *parameters.input_bias,
    )
    return head + b"".join(map(_pack, parameters.frames))


def _pack(frame: Frame) -> bytes:
    return _FRAME.pack(
        frame.crop is not None,
        frame.scales,
        frame.padding is not None,
        0,
        *(frame.crop or (0, 0, 0, 0)),
        *(0, 0, 0, 0),
        *(frame.padding or (0, 0, 0, 0)),
        *frame.mean,
        *frame.low,
        *frame.factor,
    )


def unpack(data: bytes, count: int) -> Parameters:
    """Parse the result of `pack` for a batch of `count` images."""
    form, csc, swaps, swaps_x, _, width, height, *rest = _HEAD.unpack_from(data)
    frames = [_unpack(_FRAME.unpack_from(data, data_bytes(index))) for index in range(count)]
    return Parameters(
        form,
        width,
        height,
        bool(csc),
        bool(swaps),
        bool(swaps_x),
        tuple(rest[:9]),
        tuple(rest[9:12]),
        tuple(rest[12:]),
        tuple(frames),
    )


def _unpack(values: Sequence[Any]) -> Frame:
    crops, scales, pads = values[:3]
    return Frame(
        tuple(values[4:8]) if crops else None,
        tuple(values[12:16]) if pads else None,
        tuple(values[16:20]),
        tuple(values[20:24]),
        tuple(values[24:28]),
        bool(scales),
    )
