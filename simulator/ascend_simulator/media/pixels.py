"""Pixel operations: JPEG decoding and resizing by Pillow, which the extra `media` installs."""

from __future__ import annotations

import importlib
import io
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    """Parse the header. Raises ValueError if it is not a JPEG file."""
    with _opened(data) as image:
        components = len(image.getbands())
        width, height = image.size
        return JpegInfo(width, height, components, bool(image.info.get("progressive")))


def decode_jpeg(data: bytes) -> Yuv:
    """Decode a file without an odd last row or column. Raises ValueError if it is damaged."""
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
    """Return the picture resized bilinearly; both sides must be even."""
    half = (width // 2, height // 2)
    return Yuv(
        _stretched(picture.y, (width, height)),
        _stretched(picture.u, half),
        _stretched(picture.v, half),
    )


def cropped(picture: Yuv, left: int, top: int, right: int, bottom: int) -> Yuv:
    """Return the area from `left` and `top` up to `right` and `bottom` (exclusive), all even."""
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
