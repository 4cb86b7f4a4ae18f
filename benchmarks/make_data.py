"""Write the requests in benchmarks/data/, in perf_analyzer's JSON format.

    python -m benchmarks.make_data

The files are committed, so run this only to change them. It needs scikit-learn (the `train` extra)
for the handwritten digits. No model was trained on these texts and digits. Lengths and sizes vary
as in real traffic.
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
    """Create requests with one sentence, with a paragraph, or with several texts."""
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
    """Create requests with one digit each, 6 to 64 pixels high and wide, aspect 1:2 to 2:1."""
    rng = np.random.default_rng(SEED)
    sources = load_sources(held_out=True).images
    requests = []
    for number in range(IMAGE_REQUESTS):
        size = draw_size(rng, SIZE_BUCKETS[number % len(SIZE_BUCKETS)])
        source = sources[rng.integers(len(sources))]
        (image,) = draw_disturbed(source[None], size, rng)
        # Two digits match the resolution of eight bits and keep the file small.
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
        # One line per request, so that a diff is readable.
        lines = ",\n".join(
            json.dumps(request, ensure_ascii=False, separators=(",", ":")) for request in requests
        )
        path.write_text(f'{{"data":[\n{lines}\n]}}\n', encoding="utf-8")
        print(f"{path}: {len(requests)} requests, {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
