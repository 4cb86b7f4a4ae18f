"""Read the text on an image with ocr_pipeline and NVIDIA's client library.

    python examples/read_page.py
    python examples/read_page.py --url localhost:8000 --output read.png page.jpg

The server may be the reference server or NVIDIA's tritonserver; this program works with both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

PAGES = Path(__file__).resolve().parent.parent / "model_factory" / "data" / "pages"


def main() -> None:
    """Print the lines of an image, and optionally draw their boxes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8000", help="the server (%(default)s)")
    parser.add_argument("--output", type=Path, help="where to write the image with its boxes")
    parser.add_argument("image", nargs="?", type=Path, default=PAGES / "tilted_and_noisy.jpg")
    options = parser.parse_args()
    with Image.open(options.image) as file:
        image = file.convert("RGB")
    with InferenceServerClient(options.url, network_timeout=300) as client:
        try:
            texts, scores, boxes = read(client, np.asarray(image))
        except (OSError, InferenceServerException) as error:
            raise SystemExit(f"{options.url}: {error}") from error
    for text, score, box in zip(texts, scores, boxes, strict=True):
        print(f"{score:.3f}  {text}  at {', '.join(f'{x:.0f} {y:.0f}' for x, y in box)}")
    if options.output is not None:
        draw(image, boxes).save(options.output)


def read(
    client: InferenceServerClient, image: np.ndarray
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return texts, scores and boxes of the lines on an image, UINT8 [height, width, 3]."""
    pixels = InferInput("image", image.shape, "UINT8")
    pixels.set_data_from_numpy(image)
    result = client.infer("ocr_pipeline", [pixels])
    texts = [text.decode() for text in result.as_numpy("text")]
    return texts, result.as_numpy("score"), result.as_numpy("box")


def draw(image: Image.Image, boxes: np.ndarray) -> Image.Image:
    """Return the image with a frame around each line and a dot at its first character."""
    drawn = image.copy()
    pen = ImageDraw.Draw(drawn)
    for box in boxes:
        pen.polygon([tuple(corner) for corner in box], outline=(220, 40, 40), width=2)
        pen.circle(tuple(box[0]), 4, fill=(220, 40, 40))
    return drawn


if __name__ == "__main__":
    main()
