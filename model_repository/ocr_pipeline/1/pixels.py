"""Resize and cut images with NumPy."""

import numpy as np


def resized(image, height, width):
    """Resize UINT8 [rows, columns, 3] to UINT8 [height, width, 3], with smoothing if smaller."""
    if image.shape[:2] == (height, width):
        return image
    rows = _along_rows(image.astype(np.float32), height)
    both = _along_rows(rows.transpose(1, 0, 2), width).transpose(1, 0, 2)
    return np.rint(both).astype(np.uint8)


def extended(image, height, width):
    """Extend to UINT8 [height, width, 3] by repeating the last row and column."""
    rows, columns = image.shape[:2]
    return np.pad(image, ((0, height - rows), (0, width - columns), (0, 0)), mode="edge")


def cut(image, box, height, width):
    """Return the part of an image in a rectangle, as UINT8 [height, width, 3].

    Args:
        image: UINT8 [rows, columns, 3].
        box: [4, 2], x and y of its corners in pixels, clockwise; the first becomes the top left.
        height: Pixels of the result.
        width: Pixels of the result.
    """
    left_top, right_top, _, left_bottom = box.astype(np.float32)
    right, down = right_top - left_top, left_bottom - left_top
    # If the rectangle is larger than the result, each pixel is the mean of several samples.
    samples = max(1, round(float(np.hypot(*down)) / height))
    across = (np.arange(width * samples, dtype=np.float32) + 0.5) / (width * samples)
    along = (np.arange(height * samples, dtype=np.float32) + 0.5) / (height * samples)
    points = left_top + along[:, None, None] * down + across[:, None] * right
    # The value of a pixel is the value at its centre.
    found = _between(image, points[..., 0] - 0.5, points[..., 1] - 0.5)
    found = found.reshape(height, samples, width, samples, 3).mean(axis=(1, 3))
    return np.rint(found).astype(np.uint8)


def _between(image, x, y):
    """Return the image at these positions, FP32 [..., 3], by bilinear interpolation."""
    rows, columns = image.shape[:2]
    x, y = x.clip(0, columns - 1), y.clip(0, rows - 1)
    left, top = x.astype(np.intp), y.astype(np.intp)
    right, bottom = np.minimum(left + 1, columns - 1), np.minimum(top + 1, rows - 1)
    to_right, to_bottom = (x - left)[..., None], (y - top)[..., None]
    above = image[top, left] * (1 - to_right) + image[top, right] * to_right
    below = image[bottom, left] * (1 - to_right) + image[bottom, right] * to_right
    return above * (1 - to_bottom) + below * to_bottom


def _along_rows(image, height):
    """Resize FP32 [rows, ...] to [height, ...] with a triangle filter."""
    rows = image.shape[0]
    scale = rows / height
    reach = max(scale, 1.0)
    middles = (np.arange(height) + 0.5) * scale - 0.5
    first = np.ceil(middles - reach).astype(np.intp)
    total = np.zeros((height, *image.shape[1:]), np.float32)
    weights = np.zeros(height, np.float32)
    for tap in range(int(np.floor(2 * reach)) + 1):
        places = first + tap
        near = np.maximum(0, 1 - np.abs(places - middles) / reach).astype(np.float32)
        total += image[places.clip(0, rows - 1)] * near.reshape(-1, *[1] * (image.ndim - 1))
        weights += near
    return total / weights.reshape(-1, *[1] * (image.ndim - 1))
