"""A page on its way through the three graphs: what each is given, and what its answer means."""

import math
from collections import defaultdict

import numpy as np

from . import boxes, pixels

STRIDE = 32
"""The detector takes sides that are multiples of this; lines are padded to such widths."""
LARGEST_SIDE = 1280
"""Larger pages are searched at a smaller scale; lines are read at the scale of the page."""
LINE_HEIGHT = 48
ANGLE_WIDTH = 192
SHORTEST_LINE, LONGEST_LINE = 64, 1920
UPRIGHT = 1.5
"""A line this many times as high as long is written from top to bottom."""
UPSIDE_DOWN = 0.9
"""A line is turned around if this likely."""
GREY = 128
"""Padding of lines: the middle of the range, as the recogniser was trained."""


class Page:
    """An image, UINT8 [height, width, 3], and its lines as they become known."""

    def __init__(self, image):
        self._image = image
        self._scale = min(1.0, LARGEST_SIDE / max(image.shape[:2]))
        self.boxes = np.zeros((0, 4, 2), np.float32)

    def to_search(self):
        """What the detector is given: UINT8 [1, height, width, 3]."""
        sides = [max(1, round(side * self._scale)) for side in self._image.shape[:2]]
        page = pixels.resized(self._image, *sides)
        return pixels.extended(page, *(STRIDE * math.ceil(side / STRIDE) for side in sides))[None]

    def found(self, probability):
        """Take what the detector gave, [1, height, width]."""
        height, width = self._image.shape[:2]
        found = boxes.lines(probability[0]) / self._scale
        # Some of the padding may have been taken for a line.
        inside = (found.mean(axis=1) < (width, height)).all(axis=1)
        self.boxes = found[inside].clip(0, (width, height)).astype(np.float32)

    def to_turn(self):
        """What the classifier of angles is given: UINT8 [n, 48, 192, 3]."""
        return np.concatenate(
            [_padded(self._cut(box, ANGLE_WIDTH), ANGLE_WIDTH)[None] for box in self.boxes]
        )

    def turned(self, probability):
        """Take how likely lines are upright and upside down, [n, 2]; put them in order."""
        around = probability[:, 1] > UPSIDE_DOWN
        self.boxes[around] = np.roll(self.boxes[around], 2, axis=1)
        self.boxes = self.boxes[boxes.reading_order(self.boxes)]

    def to_read(self):
        """What the recogniser is given, by width: indices of lines [k], UINT8 [k, 48, width, 3].

        How a line is padded depends on itself alone, and so does what is read.
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
        """The line in a box, UINT8 [48, width, 3], no wider than `longest`."""
        width, height = np.linalg.norm(box[1] - box[0]), np.linalg.norm(box[3] - box[0])
        if height >= UPRIGHT * width:
            box, width, height = np.roll(box, -1, axis=0), height, width
        width = math.ceil(LINE_HEIGHT * width / max(height, 1))
        return pixels.cut(self._image, box, LINE_HEIGHT, min(max(width, 1), longest))


def _padded(line, width):
    padded = np.full((LINE_HEIGHT, width, 3), GREY, np.uint8)
    padded[:, : line.shape[1]] = line
    return padded
