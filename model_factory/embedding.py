"""Texts to embeddings at set-up, with the tokenizer and the encoder that serving uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Embeddings = npt.NDArray[np.float32]

ROWS = 32
"""Texts per execution."""


class TextEmbedder:
    """The published tokenizer, and the encoder as a graph run by ONNX Runtime."""

    def __init__(self, tokenizer_json: str, encoder: bytes) -> None:
        """tokenizer_json: without padding. encoder: a serialized `encoder_model`."""
        import onnxruntime
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        options = onnxruntime.SessionOptions()
        # On one thread the sums have one order, and training again gives the same bytes.
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._session: Any = onnxruntime.InferenceSession(encoder, options, providers=providers)

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """[len(texts), hidden]; texts of like length go together, to pad little. Blocks."""
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda index: len(tokens[index]))
        hidden = self._session.get_outputs()[0].shape[1]
        result = np.empty((len(texts), hidden), np.float32)
        for start in range(0, len(order), ROWS):
            part = order[start : start + ROWS]
            result[part] = self._run([tokens[index] for index in part])
        return result

    def _run(self, tokens: Sequence[Sequence[int]]) -> Embeddings:
        lengths = np.array([len(row) for row in tokens])
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.concatenate(tokens)
        inputs = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        result: Embeddings = self._session.run(["embedding"], inputs)[0]
        return result
