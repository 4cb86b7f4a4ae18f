"""The recipe of `voice_activity`."""

from __future__ import annotations

from pathlib import Path

from model_factory.recipes import Recipe, sources
from model_factory.voice_speech import SPEECH


def _graph(path: Path) -> None:
    from model_factory.voice_accuracy import report
    from model_factory.voice_graph import voice_graph

    graph = voice_graph()
    report(graph)
    path.write_bytes(graph)


_SOURCES = sources("published", "voice_graph", "voice_speech", "voice_accuracy")

RECIPES: tuple[Recipe, ...] = (Recipe("voice_activity", "model.onnx", _graph, (*_SOURCES, SPEECH)),)
