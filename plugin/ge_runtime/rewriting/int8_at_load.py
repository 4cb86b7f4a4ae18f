"""Rewrites the graphs of a model to INT8 at load, and keeps the results for the next load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.content import ContentHashes
from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.graph import save
from ge_runtime.rewriting.int8_choice import Quantized, quantized
from ge_runtime.scheduling.kept_costs import CacheFile, cache_root, processor
from ge_runtime.specs import Tensors

_VERSION: Final = 1
"""Raised with each change of the rewritten graphs, so that kept ones are made again."""


def in_int8(
    config: RuntimeConfig, artifacts: Sequence[Artifact]
) -> tuple[tuple[Artifact, ...], list[str]]:
    """Replace the graphs of a model by graphs in INT8, as the parameter `int8: rows` requests.

    A graph is rewritten at its first load on a type of processor. The file is kept in the folder
    `graphs` of the cache; its content is that of the session, so the identity of sessions and of
    kept costs includes the rewrite.

    Args:
        config: The model.
        artifacts: The graphs of the model.

    Returns:
        The artifacts to open, and a line of the report for each graph.

    Raises:
        ArtifactFault: A graph cannot be rewritten or kept.
    """
    chosen: list[Artifact] = []
    report: list[str] = []
    for artifact in artifacts:
        path, text = _kept(config, artifact)
        chosen.append(replace(artifact, path=path, reason=f"{artifact.reason}; in INT8"))
        report.append(f"int8 {artifact.path.name}: {text}")
    return tuple(chosen), report


def _kept(config: RuntimeConfig, artifact: Artifact) -> tuple[Path, str]:
    """Return the rewritten graph, and what was measured."""
    root = cache_root()
    if config.device_kind != "cpu" or artifact.engine != "onnxruntime":
        raise ArtifactFault(
            f"parameter 'int8': found engine {artifact.engine} on {config.device_kind}, expected "
            "onnxruntime on cpu"
        )
    if root is None:
        raise ArtifactFault(
            "parameter 'int8': found no folder for the rewritten graph; expected GE_RUNTIME_CACHE "
            "to name one"
        )
    subject = {
        "content": ContentHashes().of(artifact.path),
        "rewrite": f"int8 rows {_VERSION}",
        "onnxruntime": metadata.version("onnxruntime"),
        # Products saturate on processors without VNNI, so the choice of layers depends on it.
        "processor": processor(),
    }
    file = CacheFile(root / "graphs", config.model, subject, "rewritten graphs")
    target = file.path.with_suffix(".onnx")
    known = file.load()
    if known is not None and target.is_file():
        return target, f"{known.get('text')}; kept in {target.parent}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        found = write_int8(artifact.path, target, threads=config.intra_op_threads)
    except OSError as error:
        raise ArtifactFault(
            f"parameter 'int8': the rewritten graph cannot be kept in {target.parent}: {error}"
        ) from error
    file.save({"text": str(found)})
    return target, str(found)


def write_int8(
    path: Path,
    target: Path,
    *,
    sample: Tensors | None = None,
    least_cosine: float | None = None,
    threads: int = 0,
) -> Quantized:
    """Write the graph in `path` in INT8 to `target`, at once. See `quantized` for the arguments.

    Raises:
        ArtifactFault: The graph cannot be rewritten.
        OSError: The file cannot be written.
    """
    found = quantized(path, sample, least_cosine, threads)
    with TemporaryDirectory(prefix=f".{target.stem}.", dir=target.parent) as scratch:
        own = Path(scratch) / target.name
        try:
            save(found.model, path, own)
        except ValueError as error:
            raise ArtifactFault(
                f"{path}: found a graph above 2 GiB in INT8, expected a smaller one"
            ) from error
        own.replace(target)
    return found
