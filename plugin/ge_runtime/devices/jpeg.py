"""JPEG files as images of bytes: the port of decoders, and the host's, which is Pillow.

Files come from clients: what is decoded is bounded by the header's sides first.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.errors import ArtifactFault, RequestFault

# Pillow's object, of a package that need not be installed.
Picture: TypeAlias = Any
Pixels: TypeAlias = NDArray[np.uint8]

MOST_SIDE: Final = 8192
"""Pixels: what JPEG decoders of cards take at most."""


class JpegHeader(NamedTuple):
    """What a file says of itself."""

    width: int
    height: int
    components: int
    is_progressive: bool


class JpegDecoder(Protocol):
    """Decodes files one after another. For one thread."""

    @property
    def name(self) -> str:
        """What decodes, for people."""

    def decode(self, file: bytes, height: int, width: int, channels: int) -> Pixels:
        """The picture stretched to these sides: [height, width, channels].

        channels: 1, its brightness, or 3: red, green, blue. Raises RequestFault for what is no
        JPEG file that can be decoded, and EngineLost.
        """


class PillowDecoder:
    """On the host."""

    def __init__(self) -> None:
        """Raises ArtifactFault where Pillow is missing."""
        self._image = _pillow()
        self.name: Final = f"Pillow {_version()}"

    def header(self, file: bytes) -> JpegHeader:
        """Without decoding. Raises RequestFault."""
        with self._opened(file) as picture:
            width, height = picture.size
            components = len(picture.getbands())
            return JpegHeader(width, height, components, bool(picture.info.get("progressive")))

    def decode(self, file: bytes, height: int, width: int, channels: int) -> Pixels:
        with self._opened(file) as picture:
            if channels == 1:
                picture.draft("YCbCr", None)  # brightness as the file has it, not by way of RGB
            try:
                decoded = picture.convert("YCbCr" if channels == 1 else "RGB")
            except (OSError, SyntaxError, ValueError) as error:
                found = f"found a damaged JPEG file ({error})"
                raise RequestFault(f"{found}, expected a whole one") from error
        if channels == 1:
            decoded = decoded.getchannel(0)
        # Decoders of cards leave an odd last row and column out.
        decoded = decoded.crop((0, 0, *(max(side // 2 * 2, 1) for side in decoded.size)))
        resized = decoded.resize((width, height), self._image.Resampling.BILINEAR)
        return np.asarray(resized).reshape(height, width, channels)

    def colours(self, y: Pixels, uv: Pixels) -> Pixels:
        """Red, green, blue [height, width, 3] of a picture with half as many colours each way.

        y: [height, width]. uv: [height / 2, width / 2, 2].
        """
        whole = (y, *np.moveaxis(uv.repeat(2, 0).repeat(2, 1), 2, 0))
        planes = [self._image.fromarray(np.ascontiguousarray(plane)) for plane in whole]
        return np.asarray(self._image.merge("YCbCr", planes).convert("RGB"))

    def _opened(self, file: bytes) -> Picture:
        try:
            picture = self._image.open(io.BytesIO(file), formats=("JPEG",))
        except (OSError, SyntaxError, ValueError) as error:
            found = f"{len(file):,} bytes that are no JPEG file"
            raise RequestFault(f"found {found} ({error}), expected one") from error
        if max(picture.size) > MOST_SIDE:
            width, height = picture.size
            raise RequestFault(
                f"found a JPEG file of {width} x {height} pixels, expected at most {MOST_SIDE} "
                "each way"
            )
        return picture


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        cure = "expected it for jpeg.<tensor>: `pip install 'ge-runtime[jpeg]'`"
        raise ArtifactFault(f"found no package Pillow ({error}), {cure}") from error
    return Image


def _version() -> str:
    import PIL

    return PIL.__version__
