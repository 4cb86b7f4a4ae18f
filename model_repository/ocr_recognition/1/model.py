"""A reader of text lines of any width: ge_runtime computes the characters, ctc.py the text."""

from pathlib import Path

import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel
from ge_runtime.errors import ArtifactFault

from . import ctc


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "characters.txt")
        if not path.is_file():
            raise ArtifactFault(f"{path}: found nothing; `make models` builds the artifacts")
        self._letters = ctc.alphabet(path)
        self._graph = GraphModel(args, pb_utils, derive={"text": self._text, "score": _score})

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()

    def _text(self, outputs):
        """Convert [rows, steps] characters to [rows, 1] texts."""
        return ctc.texts(outputs["character"], self._letters)[:, None]


def _score(outputs):
    """Return the mean probability of each row's characters, [rows, 1]."""
    return ctc.scores(outputs["character"], outputs["probability"])[:, None]
