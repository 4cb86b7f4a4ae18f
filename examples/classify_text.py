"""Classify customers' messages by topic with text_pipeline and NVIDIA's client library.

    python examples/classify_text.py
    python examples/classify_text.py --url localhost:8000 "Where is my parcel?" "我忘记了密码"

The server may be the reference server or NVIDIA's tritonserver; this program works with both.
"""

from __future__ import annotations

import argparse

import numpy as np
from tritonclient.http import (
    InferenceServerClient,
    InferInput,
    InferRequestedOutput,
    InferResult,
)
from tritonclient.utils import InferenceServerException

MODEL = "text_pipeline"
TEXTS = ["I was charged twice for my last order.", "我忘记了密码，登录不了。"]


def main() -> None:
    """Classify the texts of the command line and print the label and scores of each text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8000", help="the server (%(default)s)")
    parser.add_argument("texts", nargs="*", default=TEXTS, metavar="TEXT", help="what to classify")
    options = parser.parse_args()
    with InferenceServerClient(options.url) as client:
        try:
            names = class_names(client)
            for text in options.texts:
                logits, label = classify(client, text)
                show(text, label, dict(zip(names, softmax(logits), strict=True)))
        except (OSError, InferenceServerException) as error:
            raise SystemExit(f"{options.url}: {error}") from error


def classify(client: InferenceServerClient, text: str) -> tuple[np.ndarray, str]:
    """Return the logits, FP32 [classes], and the label of one text."""
    result = client.infer(MODEL, [text_input(text)])
    return result.as_numpy("logits")[0], result.as_numpy("label")[0, 0].decode()


def class_names(client: InferenceServerClient) -> list[str]:
    """Return the class names of the columns of `logits`.

    The classification extension returns "score:index:name" for each class. A model without labels
    has no names, and the index is used.
    """
    classes = client.get_model_metadata(MODEL)["outputs"][0]["shape"][-1]
    wanted = InferRequestedOutput("logits", class_count=classes)
    result: InferResult = client.infer(MODEL, [text_input("")], outputs=[wanted])
    ranking = [entry.decode().split(":", 2) for entry in result.as_numpy("logits").flat]
    return [entry[-1] for entry in sorted(ranking, key=lambda entry: int(entry[1]))]


def text_input(text: str) -> InferInput:
    """Return one text as the pipeline's input: BYTES [1], in UTF-8."""
    tensor = InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text], dtype=object))
    return tensor


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return scores that are positive and sum to one."""
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def show(text: str, label: str, scores: dict[str, float]) -> None:
    """Print one answer: the text, its label, and the score of every class."""
    print(f'\n"{text}"\n  is about: {label}')
    for name, score in sorted(scores.items(), key=lambda entry: -entry[1]):
        print(f"  {name:16} {score:6.1%}  {'#' * round(40 * score)}")


if __name__ == "__main__":
    main()
