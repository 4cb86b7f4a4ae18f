"""What `ocr_pipeline` reads on the pages that ship, measured with the files that it is served with.

The graphs are executed by ONNX Runtime without a server; all between them is the models' own code,
imported from their folders.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from model_factory.ocr_pages import Page, read_pages

REPOSITORY = Path(__file__).parents[1] / "model_repository"

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PageScore:
    """How a page was read. Spaces count for nothing."""

    name: str
    lines: int
    exact: int
    """Lines without a mistake."""
    characters: int
    mistakes: int
    """Characters inserted, left out or taken for others, at the least."""

    def __str__(self) -> str:
        """The line that set-up prints."""
        right = 1 - self.mistakes / self.characters
        return f"{self.name:22}  characters {right:.3f}  lines {self.exact} of {self.lines}"


def report(graphs: Mapping[str, bytes], alphabet: Sequence[str]) -> None:
    """Log how well each page is read. graphs: by the names of the models. Blocks for seconds."""
    logger.info("accuracy on rendered pages (spaces left out):")
    read = reader(graphs, alphabet)
    for page in read_pages():
        logger.info("  %s", score(page, read(page_pixels(page))))


def page_pixels(page: Page) -> Array:
    """UINT8 [height, width, 3]."""
    from PIL import Image

    with Image.open(page.image) as image:
        return np.asarray(image.convert("RGB"))


def reader(graphs: Mapping[str, bytes], alphabet: Sequence[str]) -> Callable[[Array], list[str]]:
    """A function: the texts on an image, in reading order."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # one order of sums, so that the figures are the same anywhere
    providers = ["CPUExecutionProvider"]
    sessions = {
        name: onnxruntime.InferenceSession(graph, options, providers=providers)
        for name, graph in graphs.items()
    }
    pages, ctc = model_module("ocr_pipeline", "page"), model_module("ocr_recognition", "ctc")
    letters = np.array(alphabet, object)

    def read(image: Array) -> list[str]:
        page = pages.Page(image)
        page.found(sessions["ocr_detection"].run(None, {"page": page.to_search()})[0])
        if not len(page.boxes):
            return []
        page.turned(sessions["ocr_angle"].run(None, {"line": page.to_turn()})[0])
        texts = np.empty(len(page.boxes), object)
        for indices, lines in page.to_read():
            characters, _ = sessions["ocr_recognition"].run(None, {"line": lines})
            texts[indices] = ctc.texts(characters, letters)
        return [text.decode() for text in texts]

    return read


def score(page: Page, found: Sequence[str]) -> PageScore:
    """Hold what was read against what was written."""
    written = [_comparable(line) for line in page.lines]
    read = [_comparable(line) for line in found]
    mistakes = _distance("\n".join(written), "\n".join(read))
    exact = sum(line in read for line in written)
    return PageScore(page.name, len(written), exact, len("".join(written)), mistakes)


def model_module(model: str, name: str) -> ModuleType:
    """A file of a model's version folder, as the server imports it: with its neighbours."""
    package = f"model_factory_{model}"
    if package not in sys.modules:
        folder = ModuleType(package)
        folder.__path__ = [str(REPOSITORY / model / "1")]
        sys.modules[package] = folder
    return importlib.import_module(f"{package}.{name}")


def _comparable(line: str) -> str:
    """Without spaces, of which the recogniser is not sure, and with one form of punctuation."""
    return line.replace(" ", "").translate(str.maketrans("，？！：；（）￥", ",?!:;()¥"))


def _distance(first: str, second: str) -> int:
    """The least number of characters to insert, delete or replace (Levenshtein)."""
    row = list(range(len(second) + 1))
    for place, character in enumerate(first, 1):
        diagonal, row[0] = row[0], place
        for other, candidate in enumerate(second, 1):
            changed = diagonal + (character != candidate)
            diagonal = row[other]
            row[other] = min(changed, row[other] + 1, row[other - 1] + 1)
    return row[-1]
