"""A topic classifier of embeddings: ge_runtime computes the logits, labels.txt has the names."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel


class TritonPythonModel:
    def initialize(self, args):
        labels = Path(args["model_repository"], "labels.txt").read_bytes().splitlines()
        self._labels = np.array(labels, object)
        self._graph = GraphModel(args, pb_utils, derive={"label": self._label})

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()

    def _label(self, outputs):
        """Convert [rows, 6] logits to [rows, 1] labels."""
        return self._labels[outputs["logits"].argmax(axis=1)][:, None]
