"""The labelled sentences of `data/sentences.tsv`: what customers of a shop write, by topic.

The split into training and held-out part depends on the sentence alone, so that adding a sentence
never moves another one across.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

DATA_PATH = Path(__file__).parent / "data" / "sentences.tsv"

LABELS = (
    "account",
    "billing",
    "delivery",
    "feedback",
    "product_question",
    "technical_issue",
)
"""The classes; a class's place here is its index in the logits."""

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One labelled sentence: `label` is one of LABELS, `language` one of LANGUAGES."""

    label: str
    language: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether it is kept from training, to measure with; true for a quarter of all texts."""
        return hashlib.sha256(self.text.encode()).digest()[0] < 64


def read_sentences(path: Path = DATA_PATH) -> list[Sentence]:
    """All sentences of a file with the columns label, language and text, in its order.

    Raises ValueError, naming the line, for a label or a language that is not known.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
        sentences = []
        for row in rows:
            sentence = Sentence(row["label"], row["language"], row["text"])
            if sentence.label not in LABELS or sentence.language not in LANGUAGES:
                raise ValueError(
                    f"{path}, line {rows.line_num}: found {sentence.label!r}, "
                    f"{sentence.language!r}; expected one of {LABELS} and one of {LANGUAGES}"
                )
            sentences.append(sentence)
    return sentences
