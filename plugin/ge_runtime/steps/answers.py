"""Converts the values of a graph to an embedding, scores with labels, or a text.

The rules are those of sentence-transformers and of the pipelines of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import Array, Tensors
from ge_runtime.steps.json_files import read_fields

VALUES: Final = "values"
"""The input with the graph's values."""
LENGTHS: Final = "lengths"
"""The input with the number of tokens in each row, [n, 1]."""
_SMALLEST: Final = 1e-12
"""The least length by which a vector is divided, as in torch's `normalize`."""


def _mean(vectors: Array, mask: Array) -> Array:
    mean: Array = np.where(mask, vectors, 0).sum(1) / mask.sum(1)
    return mean


def _last(vectors: Array, mask: Array) -> Array:
    last: Array = vectors[np.arange(len(vectors)), mask[..., 0].sum(1) - 1]
    return last


POOLINGS: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "mean": _mean,
    "cls": lambda vectors, mask: vectors[:, 0],
    "max": lambda vectors, mask: np.where(mask, vectors, -np.inf).max(1),
    "lasttoken": _last,
}
"""Functions of vectors [n, tokens, size] and a mask [n, tokens, 1], by name."""


def _softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(-1, keepdims=True))
    scores: Array = powers / powers.sum(-1, keepdims=True)
    return scores


SCORES: Final[Mapping[str, Callable[[Array], Array]]] = {
    "softmax": _softmax,
    "sigmoid": lambda values: (1 + np.tanh(values / 2)) / 2,
    "none": lambda values: values,
}


class AnswerStep:
    """Computes the outputs that config.pbtxt declares. Thread-safe.

    `embedding` is [n, size]. If the graph classifies rows, `score` is [n, labels] and `label`,
    [n, 1], is the name of the highest score. If it classifies tokens, both are [n, tokens]: `label`
    is the name of the highest score, and `score` is this score. `text` is [n, 1], made of the most
    probable character of each frame.
    """

    def __init__(
        self,
        outputs: Sequence[str],
        parameters: Mapping[str, str],
        labels: Sequence[str] = (),
        characters: Mapping[str, int] | None = None,
    ) -> None:
        """Store the rules.

        The parameters are `pooling` and `normalize` of embeddings; `scores` of scores; `blank`,
        `delimiter` and `clean` of texts. `labels` are the names of a row's values, `characters` the
        index of each character. Raises ArtifactFault if a parameter has an unknown value.
        """
        self._outputs, self._labels = tuple(outputs), _objects([name.encode() for name in labels])
        self._pooling = _choice(parameters, "pooling", {"none": None, **POOLINGS})
        self._scores = _choice(parameters, "scores", SCORES) or SCORES["none"]
        self._normalize = parameters.get("normalize") == "true"
        self._lower = parameters.get("clean") == "lower"
        self._delimiter = parameters.get("delimiter", "")
        names = {place: name for name, place in (characters or {}).items()}
        self._characters = [names.get(place, "") for place in range(max(names, default=-1) + 1)]
        self._blank = (characters or {}).get(parameters.get("blank", ""), -1)

    @classmethod
    def open(cls, args: Mapping[str, str]) -> AnswerStep:
        """Return the step for the arguments of `initialize`.

        labels.txt is beside config.pbtxt, and vocab.json beside model.py. Raises ArtifactFault.
        """
        config = json.loads(args["model_config"])
        labels = Path(args["model_repository"], "labels.txt")
        characters = Path(args["model_repository"], args["model_version"], "vocab.json")
        return cls(
            [own["name"] for own in config["output"]],
            {key: own["string_value"] for key, own in config.get("parameters", {}).items()},
            labels.read_text(encoding="utf-8").splitlines() if labels.is_file() else (),
            read_fields(characters) if characters.is_file() else None,
        )

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the outputs of a request."""
        values = inputs[VALUES]
        if "embedding" in self._outputs:
            # FP16 would lose digits in sums.
            vectors = self._embedding(values.astype(np.float32), inputs)
            return {"embedding": vectors.astype(values.dtype)}
        if "text" in self._outputs:
            texts = [self._text(row).encode() for row in values.argmax(-1)]
            return {"text": _objects(texts)[:, None]}
        scores = self._scores(values.astype(np.float32)).astype(values.dtype)
        found = {"score": scores}
        if "label" in self._outputs:
            found["label"] = self._labels[scores.argmax(-1)]
            if LENGTHS in inputs:
                mask = np.arange(values.shape[1]) < inputs[LENGTHS]
                found["label"][~mask] = b""
                found["score"] = np.where(mask, scores.max(-1), 0).astype(scores.dtype)
            else:
                found["label"] = found["label"][:, None]
        return found

    def _embedding(self, values: Array, inputs: Tensors) -> Array:
        if self._pooling is not None:
            mask = np.arange(values.shape[1]) < inputs[LENGTHS]
            values = self._pooling(values, mask[..., None])
        if self._normalize:
            length = np.linalg.norm(values, axis=-1, keepdims=True)
            values = values / np.maximum(length, _SMALLEST)
        return values

    def _text(self, places: Array) -> str:
        """Return the text of a row: equal neighbours are one character, blanks are dropped."""
        kept = [place for place, _ in groupby(places.tolist()) if place != self._blank]
        characters = (self._characters[place] for place in kept if place < len(self._characters))
        text = "".join(" " if one == self._delimiter else one for one in characters).strip()
        return text.lower() if self._lower else text


def _objects(texts: Sequence[bytes]) -> Array:
    return np.array(texts, object)


def _choice(parameters: Mapping[str, str], name: str, choices: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the function that a parameter names; None without the parameter."""
    value = parameters.get(name)
    if value is not None and value not in choices:
        raise ArtifactFault(
            f"parameter '{name}': found '{value}', expected one of: {', '.join(choices)}"
        )
    return choices.get(value or "")
