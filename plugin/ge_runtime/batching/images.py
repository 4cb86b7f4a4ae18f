"""Converts images of bytes to the graph's input on the host, as AIPP does on a card.

A pixel has 256 values, so its result is looked up: (pixel - mean - min) * var, rounded once to
FP16. The whole conversion is one pass from the request into the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ge_runtime.batching.ragged import Geometry, Layout
from ge_runtime.config import Aipp
from ge_runtime.specs import Array, TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Converts rows of images [height, width, channels] to [channels, height, width]."""

    spec: TensorSpec
    """The graph's input: FP32 or FP16."""
    source: TensorSpec
    """The images."""
    aipp: Aipp
    table: Array
    """[channels, 256], of the spec's type: the result for each value of a pixel."""
    pad: int
    """The pixel used outside of images."""

    @classmethod
    def of(cls, aipp: Aipp, source: TensorSpec, spec: TensorSpec, pad: int) -> Images:
        """Return the feed for images of `source`; `spec` is the result of `Aipp.output`."""
        return cls(spec, source, aipp, table_of(aipp).astype(spec.dtype.numpy), pad)

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return [rows, channels, height, width]."""
        return geometry.shape(self.spec)

    def write(self, layout: Layout, batch: Array) -> None:
        border, crop = self.aipp.border, self.aipp.crop
        inner = batch
        if any(border):
            batch[...] = 0
            height, width = batch.shape[2:]
            inner = batch[
                ..., border.top : height - border.bottom, border.left : width - border.right
            ]
        heights, widths = (_ends(layout, dim) for dim in self.source.dims[:2])
        pads = self.table[:, self.pad, None, None]
        for span, block in zip(layout.spans, layout.blocks, strict=True):
            for row, image in enumerate(block.tensors[self.source.name], start=span.start):
                target = inner[row]
                if crop is None:
                    image = image[: heights[row], : widths[row]]
                else:
                    image = image[crop.top :, crop.left :][: crop.height, : crop.width]
                if image.shape[:2] != target.shape[1:]:
                    target[...] = pads
                    target = target[:, : image.shape[0], : image.shape[1]]
                self._convert(image, target)
        inner[layout.filled :] = pads

    def _convert(self, image: Array, target: Array) -> None:
        channels = len(self.table)
        for channel, values in enumerate(self.table):
            taken = channels - 1 - channel if self.aipp.swaps else channel
            # All bytes are within the table; "clip" writes in place, "raise" would not.
            np.take(values, image[..., taken], out=target[channel], mode="clip")


def _ends(layout: Layout, dim: object) -> Sequence[int]:
    if isinstance(dim, str):
        ends: list[int] = layout.lengths[dim].tolist()
        return ends
    assert isinstance(dim, int)  # ensured by `read_aipp`
    return [dim] * layout.rows


def table_of(aipp: Aipp) -> Array:
    """Return the result for each value of a pixel in each channel: FP16 [channels, 256]."""
    pixels = np.arange(256, dtype=np.float64)
    # FP64 is exact for the 8 bits of a pixel and the 11 bits of two FP16 numbers: one rounding.
    rows = [
        (pixels - mean - low) * factor
        for mean, low, factor in zip(aipp.mean, aipp.minimum, aipp.factor, strict=True)
    ]
    return np.array(rows).astype(np.float16)
