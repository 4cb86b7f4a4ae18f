"""Opens the engine that an artifact was chosen for."""

from __future__ import annotations

from collections.abc import Sequence

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.engines.torch import TorchEngine


def open_engine(artifact: Artifact, *, threads: int, outputs: Sequence[str]) -> Engine:
    """The artifact's graph, ready to run. Raises ArtifactFault.

    threads: the most that one execution uses. outputs: the names that config.pbtxt gives the
    graph's outputs, for graphs that give them none.
    """
    if artifact.engine == "torch":
        return TorchEngine.open(artifact.path, threads, outputs)
    return OnnxEngine.open(artifact.path, threads)
