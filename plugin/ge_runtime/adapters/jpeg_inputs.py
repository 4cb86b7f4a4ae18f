"""Decodes prepared tensors from the JPEG files of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ge_runtime.adapters.responses import Result
from ge_runtime.config import JpegPicture
from ge_runtime.devices.jpeg import JpegDecoder
from ge_runtime.errors import RequestFault
from ge_runtime.specs import Array, Tensors


class JpegInputs:
    """Decodes images, one request after another. For one thread."""

    def __init__(self, pictures: Mapping[str, JpegPicture], decoder: JpegDecoder) -> None:
        """Store the decoder, and the pictures by prepared tensor."""
        self._pictures = pictures
        self._decoder = decoder

    def prepare(self, requests: Sequence[Tensors]) -> Sequence[Result]:
        """Return each request's images, uint8 [rows, height, width, channels], or its fault."""
        return [self._images_of(request) for request in requests]

    def _images_of(self, request: Tensors) -> Result:
        try:
            return {name: self._decode(own, request) for name, own in self._pictures.items()}
        except RequestFault as fault:
            return fault

    def _decode(self, picture: JpegPicture, request: Tensors) -> Array:
        files = request[picture.source].reshape(-1)
        images = np.empty((len(files), *picture[1:]), np.uint8)
        for row, file in enumerate(files):
            try:
                images[row] = self._decoder.decode(file, *picture[1:])
            except RequestFault as fault:
                at = f", row {row}" if len(files) > 1 else ""
                raise RequestFault(f"input '{picture.source}'{at}: {fault}") from fault
        return images
