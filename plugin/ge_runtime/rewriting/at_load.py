"""Rewrites the graphs of a model at load, and keeps the results for the next load."""

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
from ge_runtime.rewriting.proof import Gain, Proof
from ge_runtime.rewriting.unpad import Unpadded, unpad
from ge_runtime.scheduling.kept_costs import CacheFile, cache_root, processor

_VERSION: Final = 1
"""Raised with each change of the rewritten graphs, so that kept ones are made again."""
LEAST_GAIN: Final = {"one row": 0.97, "equal rows": 0.97, "different rows": 1.0}
"""Ratios below which the original graph is served. Without padding, a ratio may be below 1 by as
much as repeated measurements differ."""


def without_padding(
    config: RuntimeConfig, artifacts: Sequence[Artifact], cores: int
) -> tuple[tuple[Artifact, ...], list[str]]:
    """Replace the graphs that are faster without padding, as the parameter `unpad` requests.

    A graph is rewritten, verified and measured at its first load on a machine. The rewritten file
    and the decision are kept in the folder `graphs` of the cache.

    Args:
        config: The model.
        artifacts: The graphs of the model.
        cores: Cores of this process.

    Returns:
        The artifacts to open, and a line of the report for each graph.
    """
    chosen: list[Artifact] = []
    report: list[str] = []
    for artifact in artifacts:
        name = artifact.path.name
        try:
            path, text = _decided(config, artifact, cores)
        except ArtifactFault as fault:
            path, text = artifact.path, f"padding is kept: {fault}"
        if path != artifact.path:
            reason = f"{artifact.reason}; its padding is removed"
            artifact = replace(artifact, path=path, reason=reason)
        chosen.append(artifact)
        report.append(f"unpad {name}: {text}")
    return tuple(chosen), report


def _decided(config: RuntimeConfig, artifact: Artifact, cores: int) -> tuple[Path, str]:
    """Return the graph to open and the reason. Raises ArtifactFault if it cannot be rewritten."""
    path, root = artifact.path, cache_root()
    if config.device_kind != "cpu" or artifact.engine != "onnxruntime":
        raise ArtifactFault(
            f"found engine {artifact.engine} on {config.device_kind}, expected onnxruntime on cpu, "
            "where the gain is measured"
        )
    if config.reproducible:
        raise ArtifactFault(
            "found reproducible: true, expected false: the number of valid tokens in an execution "
            "depends on other requests, and kernels are chosen by it"
        )
    if root is None:
        raise ArtifactFault("found no folder for its graph, expected GE_RUNTIME_CACHE to name one")
    try:
        subject = {
            "content": ContentHashes().of(path),
            "rewrite": f"unpad {_VERSION}",
            "onnxruntime": metadata.version("onnxruntime"),
            "processor": processor(),
            "cores": str(cores),
            "threads": str(config.intra_op_threads),
        }
        file = CacheFile(root / "graphs", config.model, subject, "rewritten graphs")
        target = file.path.with_suffix(".onnx")
        known = file.load()
        if known is None or (known.get("unpadded") and not target.is_file()):
            unpadded, text = _made(path, target, config.intra_op_threads)
            known = {"unpadded": unpadded, "text": text}
            file.save(known)
        else:
            known = {**known, "text": f"{known.get('text')}; kept in {target.parent}"}
    except (OSError, metadata.PackageNotFoundError) as error:
        raise ArtifactFault(f"the graph cannot be kept in {root / 'graphs'}: {error}") from error
    return (target if known["unpadded"] else path), str(known["text"])


def _made(path: Path, target: Path, threads: int) -> tuple[bool, str]:
    """Rewrite, verify and measure a graph; return whether it is written to `target`, and why."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.stem}.", dir=target.parent) as scratch:
        own = Path(scratch) / target.name
        try:
            found, gain = rewritten(path, own, threads)
        except ArtifactFault as fault:
            return False, f"padding is kept: {fault}"
        if any(gain.ratios[name] < least for name, least in LEAST_GAIN.items()):
            return False, f"padding is kept, because the graph is not faster without: {gain}"
        for part in own.parent.iterdir():
            part.replace(target.parent / part.name)
    return True, f"{found}; work per CPU second {gain}"


def rewritten(path: Path, target: Path, threads: int) -> tuple[Unpadded, Gain]:
    """Write the graph in `path` without padding to `target`, verify and measure it.

    Raises:
        ArtifactFault: The graph cannot be rewritten, or its answers changed.
        OSError: The file cannot be written.
    """
    found = unpad(path)
    save(found.model, path, target)
    proof = Proof(path, target, found, threads)
    proof.verify()
    return found, proof.measure()
