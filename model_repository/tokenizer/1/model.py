"""Convert texts to token ids with the tokenizer of the encoder's training."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from ge_runtime.adapters.triton import answer_batch
from ge_runtime.errors import ArtifactFault, ConfigFault, RequestFault


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "tokenizer.json")
        if not path.is_file():
            raise ArtifactFault(f"{path}: found nothing; `make models` builds the artifacts")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.enable_truncation(_max_tokens(json.loads(args["model_config"])))

    def execute(self, requests):
        return answer_batch(pb_utils, requests, self._tokenize)

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


def _max_tokens(model_config):
    value = model_config["parameters"].get("max_tokens", {}).get("string_value", "")
    # At least [CLS], one token, [SEP].
    if not value.isdecimal() or int(value) < 3:
        fault = f"parameter 'max_tokens': found '{value}', expected a whole number of 3 or more"
        raise ConfigFault(model_config["name"], [fault])
    return int(value)


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
