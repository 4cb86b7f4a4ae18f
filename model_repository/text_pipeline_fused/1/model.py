"""A topic classifier of texts: this file tokenizes, ge_runtime executes encoder and classifier."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from ge_runtime.adapters.triton import GraphModel
from ge_runtime.errors import ArtifactFault, RequestFault


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"])
        path = folder / args["model_version"] / "tokenizer.json"
        if not path.is_file():
            raise ArtifactFault(f"{path}: found nothing; `make models` builds the artifacts")
        self._labels = np.array((folder / "labels.txt").read_bytes().splitlines(), object)
        self._tokenizer = Tokenizer.from_file(str(path))
        derive = {"label": self._label}
        # GraphModel checks the parameters; the tokenizer uses one of them afterwards.
        self._graph = GraphModel(args, pb_utils, prepare=self._tokenize, derive=derive)
        parameters = json.loads(args["model_config"])["parameters"]
        self._tokenizer.enable_truncation(int(parameters["limit.tokens"]["string_value"]))

    def execute(self, requests):
        return self._graph.execute(requests)

    def is_ready(self):
        return self._graph.is_ready()

    def finalize(self):
        self._graph.close()

    def _tokenize(self, batch):
        """Return the token ids and lengths of each request, or its RequestFault."""
        requests = [_decode(inputs["text"]) for inputs in batch]
        texts = [text for request in requests if isinstance(request, list) for text in request]
        # One call for all requests: it uses all cores and releases the GIL.
        tokens = iter([encoding.ids for encoding in self._tokenizer.encode_batch(texts)])
        return [
            _pad([next(tokens) for _ in request]) if isinstance(request, list) else request
            for request in requests
        ]

    def _label(self, outputs):
        """Convert [rows, 6] logits to [rows, 1] labels."""
        return self._labels[outputs["logits"].argmax(axis=1)][:, None]


def _decode(elements):
    """Return the texts of a request's elements, bytes [n], or a RequestFault."""
    if not elements.size:
        return RequestFault("input 'text': found no text, expected one or more")
    texts = []
    for index, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            return RequestFault(
                f"input 'text', element {index}: found {error.reason} at byte {error.start}, "
                "expected UTF-8"
            )
    return texts


def _pad(tokens):
    """Return ids [n, longest], padded with 0, and lengths [n, 1]."""
    lengths = np.array([len(row) for row in tokens], np.int32)[:, None]
    mask = np.arange(lengths.max()) < lengths
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(tokens)
    return {"input_ids": ids, "lengths": lengths}
