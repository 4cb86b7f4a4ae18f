"""Opens the engines that artifacts were chosen for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.engines.chain import ChainEngine
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.engines.torch import TorchEngine
from ge_runtime.errors import ArtifactFault


def open_engine(*artifacts: Artifact, threads: int, outputs: Sequence[str]) -> Engine:
    """The graph of the artifact, ready to run; of several, a chain of them in this order.

    threads: the most that one execution uses. outputs: the names that config.pbtxt gives the
    graph's outputs; in a chain the last stage's alone may lack names of their own.
    Raises ArtifactFault with all that cannot be opened or does not fit; then nothing stays open.
    """
    if len(artifacts) == 1:
        return _open(artifacts[0], threads, outputs)
    stages: dict[str, Engine] = {}
    faults: list[str] = []
    try:
        for artifact in artifacts:
            names = _left(stages, outputs) if artifact is artifacts[-1] else ()
            try:
                stages[artifact.path.stem] = _open(artifact, threads, names)
            except ArtifactFault as fault:
                faults.append(str(fault))
        if faults:
            raise ArtifactFault("\n".join(faults))
        return ChainEngine.of(stages, outputs)
    except ArtifactFault:
        for engine in stages.values():
            engine.close()
        raise


def _left(stages: Mapping[str, Engine], outputs: Sequence[str]) -> list[str]:
    """The outputs that none of these stages gives."""
    given = {tensor.name for engine in stages.values() for tensor in engine.signature.outputs}
    return [name for name in outputs if name not in given]


def _open(artifact: Artifact, threads: int, outputs: Sequence[str]) -> Engine:
    if artifact.engine == "torch":
        return TorchEngine.open(artifact.path, threads, outputs)
    return OnnxEngine.open(artifact.path, threads)
