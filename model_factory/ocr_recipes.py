"""The recipes of the models that read pages."""

from __future__ import annotations

from pathlib import Path

from model_factory.ocr_pages import FOLDER
from model_factory.recipes import Recipe, sources


def _detection(path: Path) -> None:
    from model_factory.ocr_graphs import detection_graph

    path.write_bytes(detection_graph())


def _angle(path: Path) -> None:
    from model_factory.ocr_graphs import angle_graph

    path.write_bytes(angle_graph())


def _characters(path: Path) -> None:
    from model_factory.ocr_graphs import characters

    # The first is the blank, which has no line.
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


# The weights are an input through published.py, which holds their hash.
_GRAPHS = sources("published", "ocr_graphs")

RECIPES: tuple[Recipe, ...] = (
    Recipe("ocr_detection", "model.onnx", _detection, _GRAPHS),
    Recipe("ocr_angle", "model.onnx", _angle, _GRAPHS),
    Recipe("ocr_recognition", "characters.txt", _characters, _GRAPHS),
    Recipe(
        "ocr_recognition",
        "model.onnx",
        _recognition,
        (*_GRAPHS, *sources("ocr_pages", "ocr_accuracy"), *sorted(FOLDER.glob("*.*"))),
    ),
)
