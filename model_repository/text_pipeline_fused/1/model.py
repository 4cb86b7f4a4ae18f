"""A topic classifier of texts: this file tokenizes, ge_runtime executes encoder and classifier."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel
from ge_runtime.steps.texts import TextStep


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"])
        tokenize = TextStep(folder / args["model_version"] / "tokenizer.json")
        self._labels = np.array((folder / "labels.txt").read_bytes().splitlines(), object)
        derive = {"label": self._label}
        # GraphModel checks the parameters; the tokenizer uses one of them afterwards.
        self._graph = GraphModel(args, pb_utils, prepare=tokenize, derive=derive)
        parameters = json.loads(args["model_config"])["parameters"]
        tokenize.truncate(int(parameters["limit.tokens"]["string_value"]))

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()

    def _label(self, outputs):
        """Convert [rows, 6] logits to [rows, 1] labels."""
        return self._labels[outputs["logits"].argmax(axis=1)][:, None]
