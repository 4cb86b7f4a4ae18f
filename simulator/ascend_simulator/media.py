"""DVPP: picture descriptions and their requirements, and pixel operations.

JPEGD decodes JPEG files, and VPC crops and resizes. The requirements are formats, dims, strides and
bytes, from CANN's pages on JPEGD and VPC. Where products differ, the stricter number is used. Only
the stride of JPEGD depends on the chip. Pillow (extra `media`) decodes and resizes.
"""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ascend_simulator.codes import Code, Refused
from ascend_simulator.memory.blocks import Bytes, round_up
from ascend_simulator.violations import declare, violate

if TYPE_CHECKING:
    from PIL.Image import Image


Plane: TypeAlias = NDArray[np.uint8]

_GREY: Final = 128


class Yuv(NamedTuple):
    """A picture of even width and height: luma [h, w] and two chroma planes [h / 2, w / 2]."""

    y: Plane
    u: Plane
    v: Plane

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.y.shape[1], self.y.shape[0]


class JpegInfo(NamedTuple):
    """The header of a JPEG file."""

    width: int
    height: int
    components: int
    is_progressive: bool


def pillow() -> ModuleType:
    """Return the module PIL.Image. Raises ImportError with install instructions."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        text = 'acl.media: Pillow is missing: pip install "ascend-simulator[media]"'
        raise ImportError(text) from error


def jpeg_info(data: bytes) -> JpegInfo:
    """Parse the header. Raises ValueError if `data` is not a JPEG file."""
    with _opened(data) as image:
        components = len(image.getbands())
        width, height = image.size
        return JpegInfo(width, height, components, bool(image.info.get("progressive")))


def decode_jpeg(data: bytes) -> Yuv:
    """Decode a file, and drop an odd last row or column. Raises ValueError if it is damaged."""
    with _opened(data) as image:
        image.draft("YCbCr", None)  # decode to YCbCr without a conversion to RGB
        try:
            pixels = np.asarray(image.convert("YCbCr"))
        except (OSError, SyntaxError) as error:
            raise ValueError(str(error)) from error
        is_grey = image.mode == "L"
    height, width = (side // 2 * 2 for side in pixels.shape[:2])
    y = np.ascontiguousarray(pixels[:height, :width, 0])
    if is_grey:
        flat = np.full((height // 2, width // 2), _GREY, np.uint8)
        return Yuv(y, flat, flat)
    fours = pixels[:height, :width, 1:].reshape(height // 2, 2, width // 2, 2, 2)
    u, v = np.moveaxis(fours.mean((1, 3)).round().astype(np.uint8), 2, 0)
    return Yuv(y, u, v)


def resized(picture: Yuv, width: int, height: int) -> Yuv:
    """Return the picture resized bilinearly; `width` and `height` must be even."""
    half = (width // 2, height // 2)
    return Yuv(
        _stretched(picture.y, (width, height)),
        _stretched(picture.u, half),
        _stretched(picture.v, half),
    )


def cropped(picture: Yuv, left: int, top: int, right: int, bottom: int) -> Yuv:
    """Return the area from `left` and `top` to `right` and `bottom` (exclusive); all are even."""
    halves = slice(top // 2, bottom // 2), slice(left // 2, right // 2)
    return Yuv(picture.y[top:bottom, left:right], picture.u[halves], picture.v[halves])


def _stretched(plane: Plane, size: tuple[int, int]) -> Plane:
    image = pillow()
    whole = image.fromarray(np.ascontiguousarray(plane))
    return np.asarray(whole.resize(size, image.Resampling.BILINEAR))


def _opened(data: bytes) -> Image:
    image = pillow()
    try:
        opened: Image = image.open(io.BytesIO(data), formats=("JPEG",))
    except (OSError, SyntaxError) as error:
        raise ValueError(str(error)) from error
    return opened


PICTURE = declare(
    "dvpp.picture", "A picture must have the format, dims, strides and bytes of DVPP's tables."
)

JPEG_SIDES: Final = range(32, 8192 + 1)
"""Width and height that JPEGD accepts."""

_WIDTHS: Final = range(10, 4096 + 1)
_HEIGHTS: Final = range(6, 4096 + 1)
_SHRINKS: Final = 32
_GROWS: Final = 16
_CHIPS_OF_128: Final = ("Ascend310", "AscendSimulator")
"""Chips with a stride of 128, in addition to the first generation of Ascend910 (`jpeg_stride`)."""


class PixelFormat(IntEnum):
    """The simulated values of acldvppPixelFormat. Both have 8 bits per sample, 12 per pixel."""

    PIXEL_FORMAT_YUV_SEMIPLANAR_420 = 1
    PIXEL_FORMAT_YVU_SEMIPLANAR_420 = 2


@dataclass
class Picture:
    """A picture description; fields are named after their setters."""

    data: int = 0
    size: int = 0
    format: int = 0
    width: int = 0
    height: int = 0
    width_stride: int = 0
    height_stride: int = 0
    ret_code: int = 0

    @property
    def needed(self) -> int:
        """The bytes that the strides need."""
        return self.width_stride * self.height_stride * 3 // 2


def jpeg_stride(soc: str) -> int:
    """Return the alignment of JPEGD's width strides."""
    is_910 = soc.startswith("Ascend910") and soc[9:10] not in ("B", "C", "_")
    return 128 if soc in _CHIPS_OF_128 or is_910 else 64


def predicted_bytes(width: int, height: int) -> int:
    """Return the bytes that a decoded picture needs on any chip."""
    return round_up(width, 128) * round_up(height, 16) * 3 // 2


def check(picture: Picture, what: str, *, across: int, down: int) -> None:
    """Check PICTURE. The width stride must be a multiple of `across`, the height stride of `down`.

    Raises Refused: INVALID_PARAM, API_NOT_SUPPORT for formats that are not simulated.
    """
    if picture.data == 0:
        raise Refused(Code.INVALID_PARAM, f"{what}: the picture has no data")
    if picture.format not in tuple(PixelFormat):
        text = f"{what}: format: found {picture.format}, expected 1 or 2 (YUV420SP)"
        raise Refused(Code.API_NOT_SUPPORT, text)
    wrong = [
        f"{name} {found}, expected {expected}"
        for name, found, fits, expected in (
            ("width", picture.width, picture.width % 2 == 0, "an even number"),
            ("height", picture.height, picture.height % 2 == 0, "an even number"),
            (
                "width stride",
                picture.width_stride,
                _is_stride(picture.width_stride, picture.width, across),
                f"{round_up(picture.width, across)} (a multiple of {across})",
            ),
            (
                "height stride",
                picture.height_stride,
                _is_stride(picture.height_stride, picture.height, down),
                f"{round_up(picture.height, down)} (a multiple of {down})",
            ),
            ("size", picture.size, picture.size >= picture.needed, f"{picture.needed:,} or more"),
        )
        if not fits
    ]
    refuse(what, wrong)


def check_vpc(picture: Picture, what: str) -> None:
    """Check a picture that VPC reads or writes, like `check`."""
    check(picture, what, across=16, down=2)
    sides = (("width", picture.width, _WIDTHS), ("height", picture.height, _HEIGHTS))
    refuse(
        what,
        [
            f"{name} {found}, expected {fits[0]} to {fits[-1]}"
            for name, found, fits in sides
            if found not in fits
        ],
    )


def check_scale(what: str, before: tuple[int, int], after: tuple[int, int]) -> None:
    """Check PICTURE: VPC can make a side at most 32 times smaller or 16 times larger."""
    wrong = [
        f"a side of {old} resized to {new}, expected 1/{_SHRINKS} to {_GROWS} times {old}"
        for old, new in zip(before, after, strict=True)
        if not old <= new * _SHRINKS or not new <= old * _GROWS
    ]
    refuse(what, wrong)


def refuse(what: str, wrong: list[str]) -> None:
    """Violate PICTURE, and raise Refused INVALID_PARAM, if `wrong` is not empty."""
    if wrong:
        text = f"{what}: found {'; '.join(wrong)}"
        violate(PICTURE, text)
        raise Refused(Code.INVALID_PARAM, text)


def read(picture: Picture, content: Bytes) -> Yuv:
    """Return a copy of the pixels of a checked picture."""
    y, colours = _planes(picture, content)
    first, second = colours[..., 0].copy(), colours[..., 1].copy()
    return Yuv(y.copy(), *((second, first) if _is_swapped(picture) else (first, second)))


def write(picture: Picture, content: Bytes, pixels: Yuv, left: int = 0, top: int = 0) -> None:
    """Write pixels at column `left` and row `top`; the rest of the picture is unchanged."""
    y, colours = _planes(picture, content)
    width, height = pixels.size
    y[top : top + height, left : left + width] = pixels.y
    pair = (pixels.v, pixels.u) if _is_swapped(picture) else (pixels.u, pixels.v)
    part = slice(top // 2, (top + height) // 2), slice(left // 2, (left + width) // 2)
    colours[part] = np.stack(pair, axis=-1)


def _planes(picture: Picture, content: Bytes) -> tuple[Bytes, Bytes]:
    stride, rows = picture.width_stride, picture.height_stride
    y = content[: stride * rows].reshape(rows, stride)[: picture.height, : picture.width]
    colours = content[stride * rows : picture.needed].reshape(rows // 2, stride // 2, 2)
    return y, colours[: picture.height // 2, : picture.width // 2]


def _is_swapped(picture: Picture) -> bool:
    return picture.format == PixelFormat.PIXEL_FORMAT_YVU_SEMIPLANAR_420


def _is_stride(stride: int, side: int, multiple: int) -> bool:
    return stride >= side and stride % multiple == 0
