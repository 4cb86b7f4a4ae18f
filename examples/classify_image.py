"""Classify images of digits of any size with ge_classifier and NVIDIA's client library.

    python examples/classify_image.py
    python examples/classify_image.py --url localhost:8000 --size 40x28 508

Without --size the images have different sizes. Each image is one request; all are sent at once, and
the server may execute them as one batch. The classification extension of the protocol returns the
best classes with names and scores.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

MODEL = "ge_classifier"
SIZES = [(12, 9), (20, 20), (24, 40)]
SHADES = np.array([" ", ".", ":", "*", "#"])

# The strokes of each digit: points as column and row of a grid of 8 by 8.
STROKES = [
    "40 21 15 26 47 56 65 52 51 40",
    "22 40 47",
    "21 30 50 62 54 27 67",
    "20 50 61 43 64 66 57 27",
    "40 14 64 42 47",
    "60 20 23 53 65 57 27",
    "50 22 15 37 56 65 43 24",
    "20 60 54 47",
    "40 21 33 54 66 47 26 34 53 61 40",
    "63 34 22 30 50 62 55 37",
]
PEN = 1.25  # radius of the pen in steps of that grid; the ink fades towards the edge


def main() -> None:
    """Draw the digits of the command line, classify them, and print each answer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8000", help="the server (%(default)s)")
    parser.add_argument("--size", type=size, metavar="HxW", help="height and width, in pixels")
    parser.add_argument(
        "digits", nargs="?", type=digits, default="358", help="to draw (%(default)s)"
    )
    options = parser.parse_args()
    sizes = itertools.cycle([options.size] if options.size else SIZES)
    images = [draw(digit, next(sizes)) for digit in options.digits]
    try:
        answers = classify(options.url, images)
    except (OSError, InferenceServerException) as error:
        raise SystemExit(f"{options.url}: {error}") from error
    for digit, image, classes in zip(options.digits, images, answers, strict=True):
        show(digit, image, classes)


def size(text: str) -> tuple[int, int]:
    """Parse height and width from a text such as "40x28"."""
    height, width = map(int, text.split("x"))
    return height, width


def digits(text: str) -> list[int]:
    """Parse the digits of a text such as "508"."""
    return [int(digit) for digit in text]


def draw(digit: int, shape: tuple[int, int]) -> np.ndarray:
    """Draw a digit with a soft pen: FP32 [height, width], from 0 (dark) to 1 (ink)."""
    height, width = shape
    rows, columns = np.mgrid[:height, :width]
    # Centre of each pixel in coordinates of the strokes' grid.
    pixels = np.stack([(columns + 0.5) * 8 / width, (rows + 0.5) * 8 / height], axis=-1) - 0.5
    points = np.array([[int(point[0]), int(point[1])] for point in STROKES[digit].split()])
    distance = np.full(shape, np.inf)
    for start, end in itertools.pairwise(points):
        line = end - start
        along = np.clip((pixels - start) @ line / (line @ line), 0, 1)
        nearest = start + along[..., None] * line
        distance = np.minimum(distance, np.linalg.norm(pixels - nearest, axis=-1))
    return np.clip(PEN - distance, 0, 1).astype(np.float32)


def classify(url: str, images: list[np.ndarray]) -> list[list[str]]:
    """Return the three best classes of each image, as "score:index:name"."""
    with InferenceServerClient(url, concurrency=len(images)) as client:
        # Raises one error here if the server is unreachable, instead of one for each request.
        client.is_server_live()
        wanted = [InferRequestedOutput("logits", class_count=3)]
        requests = [
            client.async_infer(MODEL, [image_input(image)], outputs=wanted) for image in images
        ]
        return [
            [entry.decode() for entry in request.get_result().as_numpy("logits").flat]
            for request in requests
        ]


def image_input(image: np.ndarray) -> InferInput:
    """Return one image as the model's input: FP32 [1, 1, height, width]."""
    tensor = InferInput("image", [1, 1, *image.shape], "FP32")
    tensor.set_data_from_numpy(image[None, None])
    return tensor


def show(digit: int, image: np.ndarray, classes: list[str]) -> None:
    """Print one answer: the image, and its best classes with their scores."""
    height, width = image.shape
    print(f"\nA {digit}, {height} pixels high and {width} wide:")
    for row in SHADES[np.round(image * 4).astype(int)]:
        print("  " + "".join(row))
    for entry in classes:
        score, _, name = entry.split(":")
        print(f"  {name:6} {float(score):6.2f}")


if __name__ == "__main__":
    main()
