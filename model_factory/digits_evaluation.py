"""Accuracy of the digit classifier by a fixed protocol, independent of the engine.

Every held-out source image is drawn at sizes from every bucket and classified in ragged batches:
images of different sizes, padded to the largest height and width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from model_factory.digits_images import SIZE_BUCKETS, Floats, Sources, draw_size

Classify = Callable[[Floats, Floats], Floats]
"""Returns logits, float32 [batch, 10], for images, float32 [batch, 1, height, width], and masks,
float32 [batch, height, width]."""

Draw = Callable[[Floats, tuple[int, int], np.random.Generator], Floats]
"""`draw_plain` or `draw_disturbed`."""

_SEED = 20240607  # of sizes, kernels and disturbances; fixed, so that results are reproducible
_DRAWINGS_PER_BUCKET = 2
_BATCH_SIZE = 64


def pad(images: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Join images [height_i, width_i] into one batch; return image [n, 1, H, W], mask [n, H, W].

    H and W are the largest height and width. Each image lies in the top left corner, where the mask
    is 1. Image and mask are 0 on the padding.
    """
    height = max(image.shape[0] for image in images)
    width = max(image.shape[1] for image in images)
    batch = np.zeros((len(images), 1, height, width), np.float32)
    mask = np.zeros((len(images), height, width), np.float32)
    for row, image in enumerate(images):
        batch[row, 0, : image.shape[0], : image.shape[1]] = image
        mask[row, : image.shape[0], : image.shape[1]] = 1
    return batch, mask


def accuracy_by_bucket(classify: Classify, sources: Sources, draw: Draw) -> tuple[float, ...]:
    """Return the share of right answers, 0 to 1, for each of `SIZE_BUCKETS`.

    Every bucket has the same number of drawings, so the mean is the accuracy over all drawings.
    """
    rng = np.random.default_rng(_SEED)
    return tuple(_accuracy(classify, sources, draw, bucket, rng) for bucket in SIZE_BUCKETS)


def _accuracy(
    classify: Classify,
    sources: Sources,
    draw: Draw,
    bucket: tuple[int, int],
    rng: np.random.Generator,
) -> float:
    """Return the share of right answers for all sources, drawn at sizes from one bucket."""
    labels = np.repeat(sources.labels, _DRAWINGS_PER_BUCKET)
    images = [
        draw(source[None], draw_size(rng, bucket), rng)[0]
        for source in np.repeat(sources.images, _DRAWINGS_PER_BUCKET, axis=0)
    ]
    right = 0
    for start in range(0, len(images), _BATCH_SIZE):
        logits = classify(*pad(images[start : start + _BATCH_SIZE]))
        right += int((logits.argmax(axis=1) == labels[start : start + _BATCH_SIZE]).sum())
    return right / len(images)
