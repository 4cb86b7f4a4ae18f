"""Prepare the inputs of the three graphs from a page, and interpret their outputs."""

import math
from collections import defaultdict

import numpy as np

from . import boxes, pixels

STRIDE = 32
"""Sides of the detector's input, and widths of lines, are multiples of this."""
LARGEST_SIDE = 1280
"""Larger pages are scaled down for the detector. The recogniser uses the original scale."""
LINE_HEIGHT = 48
ANGLE_WIDTH = 192
SHORTEST_LINE, LONGEST_LINE = 64, 1920
UPRIGHT = 1.5
"""A line whose height is at least this multiple of its length runs from top to bottom."""
UPSIDE_DOWN = 0.9
"""A line is rotated by 180 degrees above this probability."""
GREY = 128
"""Padding value of lines: the middle of the range, as in the training of the recogniser."""


class Page:
    """An image, UINT8 [height, width, 3], and the lines that were found on it."""

    def __init__(self, image):
        self._image = image
        self._scale = min(1.0, LARGEST_SIDE / max(image.shape[:2]))
        self.boxes = np.zeros((0, 4, 2), np.float32)

    def to_search(self):
        """Return the detector's input, UINT8 [1, height, width, 3]."""
        sides = [max(1, round(side * self._scale)) for side in self._image.shape[:2]]
        page = pixels.resized(self._image, *sides)
        return pixels.extended(page, *(STRIDE * math.ceil(side / STRIDE) for side in sides))[None]

    def found(self, probability):
        """Find the lines in the detector's output, [1, height, width]."""
        height, width = self._image.shape[:2]
        found = boxes.lines(probability[0]) / self._scale
        # The detector may find lines in the padding.
        inside = (found.mean(axis=1) < (width, height)).all(axis=1)
        self.boxes = found[inside].clip(0, (width, height)).astype(np.float32)

    def to_turn(self):
        """Return the input of the angle classifier, UINT8 [n, 48, 192, 3]."""
        return np.concatenate(
            [_padded(self._cut(box, ANGLE_WIDTH), ANGLE_WIDTH)[None] for box in self.boxes]
        )

    def turned(self, probability):
        """Rotate and sort the lines by the angle classifier's output, [n, 2]."""
        around = probability[:, 1] > UPSIDE_DOWN
        self.boxes[around] = np.roll(self.boxes[around], 2, axis=1)
        self.boxes = self.boxes[boxes.reading_order(self.boxes)]

    def to_read(self):
        """Yield the recogniser's inputs by width: indices of lines [k], UINT8 [k, 48, width, 3].

        The padding of a line depends on the line alone, and so does the text that is read.
        """
        groups = defaultdict(list)
        for index, box in enumerate(self.boxes):
            line = self._cut(box, LONGEST_LINE)
            width = max(SHORTEST_LINE, STRIDE * math.ceil(line.shape[1] / STRIDE))
            groups[width].append((index, _padded(line, width)))
        for lines in groups.values():
            indices, images = zip(*lines, strict=True)
            yield list(indices), np.stack(images)

    def _cut(self, box, longest):
        """Return the line in a box, UINT8 [48, width, 3], with a width of at most `longest`."""
        width, height = np.linalg.norm(box[1] - box[0]), np.linalg.norm(box[3] - box[0])
        if height >= UPRIGHT * width:
            box, width, height = np.roll(box, -1, axis=0), height, width
        width = math.ceil(LINE_HEIGHT * width / max(height, 1))
        return pixels.cut(self._image, box, LINE_HEIGHT, min(max(width, 1), longest))


def _padded(line, width):
    padded = np.full((LINE_HEIGHT, width, 3), GREY, np.uint8)
    padded[:, : line.shape[1]] = line
    return padded
