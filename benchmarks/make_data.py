"""Write the requests that perf_analyzer sends, in its own JSON form, into benchmarks/data/.

    python -m benchmarks.make_data

The files are committed, so this runs only when they shall change. It needs scikit-learn (the
`train` extra) for the handwritten digits. Texts and digits are held-out ones: no model was trained
on them. Every sample has a shape of its own, so lengths and sizes vary as they do in the field.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

from model_factory.digits_images import SIZE_BUCKETS, draw_disturbed, draw_size, load_sources
from model_factory.sentences import read_sentences

DATA = Path(__file__).with_name("data")
SEED = 24
TEXT_REQUESTS = 48
IMAGE_REQUESTS = 24


def text_requests() -> list[dict]:
    """Two requests in three hold one sentence; the others a paragraph, or several texts."""
    rng = random.Random(SEED)
    sentences = {
        language: [s.text for s in read_sentences() if s.held_out and s.language == language]
        for language in ("en", "zh")
    }
    requests = []
    for number in range(TEXT_REQUESTS):
        language = "zh" if number % 4 == 3 else "en"
        chosen = rng.sample(sentences[language], k=rng.randint(2, 12))
        if number % 6 == 4:
            texts = [("" if language == "zh" else " ").join(chosen)]
        elif number % 6 == 5:
            texts = chosen[:8]
        else:
            texts = chosen[:1]
        requests.append({"text": {"content": texts, "shape": [len(texts)]}})
    return requests


def image_requests() -> list[dict]:
    """One digit each, from 6 to 64 pixels high and wide, of any aspect from 1:2 to 2:1."""
    rng = np.random.default_rng(SEED)
    sources = load_sources(held_out=True).images
    requests = []
    for number in range(IMAGE_REQUESTS):
        size = draw_size(rng, SIZE_BUCKETS[number % len(SIZE_BUCKETS)])
        source = sources[rng.integers(len(sources))]
        (image,) = draw_disturbed(source[None], size, rng)
        # Two digits are all that eight bits of grey would tell, and keep the file small.
        pixels = [round(float(pixel), 2) for pixel in image.ravel()]
        requests.append({"image": {"content": pixels, "shape": [1, *size]}})
    return requests


def main() -> None:
    """Write both files."""
    DATA.mkdir(exist_ok=True)
    for model, requests in (
        ("text_pipeline", text_requests()),
        ("ge_classifier", image_requests()),
    ):
        path = DATA / f"{model}.json"
        # A line for each request, so that a change can be read.
        lines = ",\n".join(
            json.dumps(request, ensure_ascii=False, separators=(",", ":")) for request in requests
        )
        path.write_text(f'{{"data":[\n{lines}\n]}}\n', encoding="utf-8")
        print(f"{path}: {len(requests)} requests, {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
