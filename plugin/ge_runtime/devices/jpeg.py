"""Decoding of image files: the decoder port, and the host's decoder, which uses Pillow.

Files come from clients, so the size in the header is checked before a file is decoded.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.errors import ArtifactFault, RequestFault

# An object of Pillow, which may not be installed.
Picture: TypeAlias = Any
Pixels: TypeAlias = NDArray[np.uint8]

MOST_SIDE: Final = 8192
"""Maximum width and height in pixels, as for the JPEG decoders of cards."""


class JpegHeader(NamedTuple):
    """The header of a JPEG file."""

    width: int
    height: int
    components: int
    is_progressive: bool


class JpegDecoder(Protocol):
    """A decoder of JPEG files. Not thread-safe."""

    @property
    def name(self) -> str:
        """The decoder's name, for people."""

    def decode(self, file: bytes, height: int, width: int, channels: int) -> Pixels:
        """Decode a file and resize the image, without keeping its aspect ratio.

        Args:
            file: The content of the file.
            height: Height of the result in pixels.
            width: Width of the result in pixels.
            channels: 1 for brightness; 3 for red, green, blue.

        Returns:
            uint8 [height, width, channels].

        Raises:
            RequestFault: The file is not a JPEG file, is damaged, or is too large.
            EngineLost: The device is lost.
        """


class PillowDecoder:
    """The decoder of the host."""

    def __init__(self) -> None:
        """Import Pillow. Raises ArtifactFault if it is missing."""
        self._image = _pillow()
        self.name: Final = f"Pillow {_version()}"

    def header(self, file: bytes) -> JpegHeader:
        """Read the header without decoding. Raises RequestFault."""
        with self._opened(file) as picture:
            width, height = picture.size
            components = len(picture.getbands())
            return JpegHeader(width, height, components, bool(picture.info.get("progressive")))

    def decode(self, file: bytes, height: int, width: int, channels: int) -> Pixels:
        with self._opened(file) as picture:
            if channels == 1:
                picture.draft("YCbCr", None)  # the file's brightness, without converting to RGB
            try:
                decoded = picture.convert("YCbCr" if channels == 1 else "RGB")
            except (OSError, SyntaxError, ValueError) as error:
                raise _damaged("JPEG", error) from error
        if channels == 1:
            decoded = decoded.getchannel(0)
        # An odd last row or column is dropped, as by the decoders of cards.
        decoded = decoded.crop((0, 0, *(max(side // 2 * 2, 1) for side in decoded.size)))
        resized = decoded.resize((width, height), self._image.Resampling.BILINEAR)
        return np.asarray(resized).reshape(height, width, channels)

    def rgb(self, file: bytes) -> Picture:
        """Decode a JPEG or PNG file to a picture of Pillow in red, green, blue.

        Raises:
            RequestFault: The file has another format, is damaged, or is too large.
        """
        with self._opened(file, "JPEG", "PNG") as picture:
            try:
                return picture.convert("RGB")
            except (OSError, SyntaxError, ValueError) as error:
                raise _damaged(picture.format, error) from error

    def colours(self, y: Pixels, uv: Pixels) -> Pixels:
        """Convert YUV 4:2:0 to red, green, blue.

        Args:
            y: [height, width].
            uv: [height / 2, width / 2, 2].

        Returns:
            [height, width, 3].
        """
        whole = (y, *np.moveaxis(uv.repeat(2, 0).repeat(2, 1), 2, 0))
        planes = [self._image.fromarray(np.ascontiguousarray(plane)) for plane in whole]
        return np.asarray(self._image.merge("YCbCr", planes).convert("RGB"))

    def _opened(self, file: bytes, *formats: str) -> Picture:
        formats = formats or ("JPEG",)
        try:
            picture = self._image.open(io.BytesIO(file), formats=formats)
        except (OSError, SyntaxError, ValueError, self._image.DecompressionBombError) as error:
            expected = f"a {' or '.join(formats)} file"
            raise RequestFault(
                f"found {len(file):,} bytes that are not {expected} ({error}), expected such a file"
            ) from error
        if max(picture.size) > MOST_SIDE:
            width, height = picture.size
            raise RequestFault(
                f"found a {picture.format} file of {width} x {height} pixels, expected a width and "
                f"height of at most {MOST_SIDE}"
            )
        return picture


def _damaged(form: str, error: Exception) -> RequestFault:
    return RequestFault(f"found a damaged {form} file ({error}), expected a complete file")


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        cure = "expected it for images: `pip install 'ge-runtime[jpeg]'`"
        raise ArtifactFault(f"found no package Pillow ({error}), {cure}") from error
    return Image


def _version() -> str:
    import PIL

    return PIL.__version__
