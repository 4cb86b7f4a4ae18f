"""Creates the inputs of its graph: the numbers of the letters in each text."""

import numpy as np
import triton_python_backend_utils as pb_utils

from ge_runtime.adapters.triton import GraphModel
from ge_runtime.errors import RequestFault


class TritonPythonModel:
    def initialize(self, args):
        self._graph = GraphModel(args, pb_utils, prepare=prepare)

    def execute(self, requests):
        return self._graph.execute(requests)

    def finalize(self):
        self._graph.close()


def prepare(batch):
    return [numbered(inputs["text"]) for inputs in batch]


def numbered(texts):
    """Return the numbers of letters [n, longest], where a is 0, and lengths [n, 1]."""
    lengths = np.array([len(text) for text in texts], np.int32)
    if not lengths.all():
        return RequestFault("input 'text': found a text without letters, expected one or more")
    numbers = np.zeros((len(texts), lengths.max()), np.int64)
    for row, text in zip(numbers, texts, strict=True):
        row[: len(text)] = np.frombuffer(text, np.uint8) - ord("a")
    return {"input_ids": numbers, "lengths": lengths[:, None]}
