"""Handwritten digits drawn at any size: the source images, their split, and the drawing.

The sources are scikit-learn's 1797 digits of 8x8 pixels. A drawing is a source resampled to a given
height and width; `draw_disturbed` also adds shift, slant, weaker contrast and noise. Everything
except `load_sources` needs only NumPy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_Reals = npt.NDArray[np.floating]  # float32 at run time; NumPy's type hints do not show it

SOURCE_SIDE = 8
"""Height and width of a source image, in pixels."""

SIZE_BUCKETS = ((6, 8), (9, 16), (17, 32), (33, 64))
"""Ranges of an image's longer side in pixels, inclusive, ascending. Sizes are drawn evenly over the
buckets, and accuracy is reported by bucket."""

_SHORTEST_SIDE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """Source digits: images [n, 8, 8] float32, 0 (dark) to 1 (ink), and labels [n] int64."""

    images: Floats
    labels: npt.NDArray[np.int64]


def is_held_out(index: int) -> bool:
    """Return whether a source image is kept from training; true for about one image in five.

    index: the image's position in scikit-learn's set. A hash of the index decides, so that the
    order of the set has no influence.
    """
    return hashlib.sha256(str(index).encode()).digest()[0] % 5 == 0


def load_sources(*, held_out: bool) -> Sources:
    """Return the held-out source images, or all other images. ImportError without scikit-learn."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    chosen = np.array([is_held_out(index) == held_out for index in range(len(labels))])
    images = pixels[chosen].reshape(-1, SOURCE_SIDE, SOURCE_SIDE) / 16  # stored as 0..16
    return Sources(images.astype(np.float32), labels[chosen].astype(np.int64))


def draw_size(rng: np.random.Generator, bucket: tuple[int, int]) -> tuple[int, int]:
    """Return height and width in pixels: the longer side in `bucket`, the aspect 1:2 to 2:1."""
    longer = int(rng.integers(bucket[0], bucket[1], endpoint=True))
    shorter = max(_SHORTEST_SIDE, round(longer * rng.uniform(0.5, 1)))
    return (longer, shorter) if rng.random() < 0.5 else (shorter, longer)


def draw_plain(sources: Floats, size: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Return each source resampled to fill `size` exactly; only the kernel is random.

    sources: [n, 8, 8]. size: height and width in pixels. Returns [n, height, width] in 0..1.
    """
    none = np.zeros((len(sources), 1), np.float32)
    placement = _Placement(zoom_y=none + 1, zoom_x=none + 1, shift_y=none, shift_x=none, slant=none)
    return _resample(sources, size, placement, rng)


def draw_disturbed(sources: Floats, size: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Return each source with a random margin, shift, slant, contrast, background and noise.

    Arguments and result as for `draw_plain`.
    """

    def each(low: float, high: float) -> Floats:
        return rng.uniform(low, high, (len(sources), 1)).astype(np.float32)

    placement = _Placement(
        zoom_y=each(0.92, 1.25),
        zoom_x=each(0.92, 1.25),
        shift_y=each(-0.5, 0.5),
        shift_x=each(-0.5, 0.5),
        slant=each(-0.2, 0.2),
    )
    images = _resample(sources, size, placement, rng)
    images = images ** each(0.75, 1.35)[:, None] * each(0.6, 1)[:, None]
    noise = rng.standard_normal(images.shape, np.float32) * each(0, 0.06)[:, None]
    return np.clip(images + each(0, 0.1)[:, None] + noise, 0, 1).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Placement:
    """The positions of n digits in their images; every field is float32 [n, 1].

    zoom: extent of the image as a multiple of the source's 8 pixels: above 1 leaves a margin, below
        1 cuts the border.
    shift: offset of the image's middle, in source pixels.
    slant: source pixels sideways for each source pixel downwards.
    """

    zoom_y: Floats
    zoom_x: Floats
    shift_y: Floats
    shift_x: Floats
    slant: Floats


def _bilinear(distance: _Reals) -> _Reals:
    """Return the weight of a source pixel at a distance in source pixels: a tent function."""
    tent: _Reals = np.maximum(1 - np.abs(distance), 0)
    return tent


def _bicubic(distance: _Reals) -> _Reals:
    """Return the weight by the cubic of Catmull and Rom, which is sharper, and overshoots."""
    d = np.abs(distance)
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((-0.5 * d + 2.5) * d - 4) * d + 2
    return np.where(d < 1, near, np.where(d < 2, far, 0))


_Kernel = Callable[[_Reals], _Reals]
_KERNELS: tuple[_Kernel, ...] = (_bilinear, _bicubic)


def _resample(
    sources: Floats, size: tuple[int, int], place: _Placement, rng: np.random.Generator
) -> Floats:
    """Resample [n, 8, 8] to [n, height, width] in 0..1; outside the 8x8 pixels, sources are 0."""
    height, width = size
    kernel = _KERNELS[int(rng.integers(len(_KERNELS)))]
    middle = SOURCE_SIDE / 2
    row_step = place.zoom_y * (SOURCE_SIDE / height)  # source pixels to the next row, [n, 1]
    column_step = place.zoom_x * (SOURCE_SIDE / width)
    rows = middle + place.shift_y + row_step * _from_middle(height)  # [n, height]
    columns = middle + place.shift_x + column_step * _from_middle(width)  # [n, width]
    # The lower a row of a slanted digit, the larger its sideways offset: [n, height, width].
    leaning = columns[:, None, :] + (place.slant * (rows - middle))[:, :, None]
    lines = np.matmul(_weights(kernel, rows, row_step), sources)  # [n, height, 8]
    column_weights = _weights(kernel, leaning, column_step[:, :, None])
    images: Floats = np.matmul(column_weights, lines[..., None])[..., 0]
    return images.clip(0, 1)


def _from_middle(count: int) -> _Reals:
    """Return the middles of `count` pixels relative to the middle of all: -0.5, 0.5 for two."""
    return np.arange(count, dtype=np.float32) - (count - 1) / 2


def _weights(kernel: _Kernel, positions: _Reals, step: _Reals) -> _Reals:
    """Return the weight of each of the 8 source pixels at each position: [*positions.shape, 8].

    positions: [n, ...] in source pixels. step: distance between positions, [n, 1, ...]. The kernel
    is stretched by a step above one, so that a shrunk image averages instead of skipping pixels.
    """
    stretch = np.maximum(step, 1)[..., None]
    middles = np.arange(SOURCE_SIDE, dtype=np.float32) + 0.5
    return kernel((positions[..., None] - middles) / stretch) / stretch
