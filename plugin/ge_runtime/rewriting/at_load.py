"""Rewrites the graphs of a model at load, and caches the results for the next load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Final

from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.content import ContentHashes
from ge_runtime.errors import ArtifactFault
from ge_runtime.rewriting.graph import replacing, save
from ge_runtime.rewriting.int8_choice import NoLayers, write_int8
from ge_runtime.rewriting.proof import Gain, Proof
from ge_runtime.rewriting.unpad import Unpadded, unpad
from ge_runtime.scheduling.kept_costs import CacheFile, cache_root, processor

_VERSION: Final = 2
"""Incremented with each change of a rewrite, so that cached graphs are made again."""
LEAST_GAIN: Final = {"one row": 0.97, "equal rows": 0.97, "different rows": 1.0}
"""Least speed of the rewritten graph, relative to the original, for each entry of `proof.TIMED`. If
one speed is lower, the original graph is served. Inputs without padding gain nothing, so their
limit is below 1 by the spread of repeated measurements."""


def rewrite_graphs(
    config: RuntimeConfig, artifacts: Sequence[Artifact], cores: int
) -> tuple[tuple[Artifact, ...], list[str]]:
    """Rewrite the graphs of a model as the parameters `unpad` and `int8` request, in this order.

    A graph is rewritten at its first load on a machine. The file is stored in the folder `graphs`
    of the cache. Sessions and cached costs are identified by the content of the opened file.

    Returns the artifacts to open, and a line of the report for each graph and rewrite.

    Raises:
        ArtifactFault: A graph cannot be rewritten in INT8. But a graph is served unchanged if its
            padding cannot be removed, or if it is one of several and has no linear layers.
    """
    chosen: list[Artifact] = []
    report: list[str] = []
    for artifact in artifacts:
        name = artifact.path.name
        if config.unpad:
            path, text = _without_padding(config, artifact, cores)
            report.append(f"unpad {name}: {text}")
            if path != artifact.path:
                reason = f"{artifact.reason}; its padding is removed"
                artifact = replace(artifact, path=path, reason=reason)
        if config.int8:
            try:
                path, text = _in_int8(config, artifact)
            except NoLayers as fault:
                if len(artifacts) == 1:
                    raise
                report.append(f"int8 {name}: FP32 is kept: {fault}")
            else:
                report.append(f"int8 {name}: {text}")
                artifact = replace(artifact, path=path, reason=f"{artifact.reason}; in INT8")
        chosen.append(artifact)
    return tuple(chosen), report


def _without_padding(config: RuntimeConfig, artifact: Artifact, cores: int) -> tuple[Path, str]:
    """Return the graph to open, and the measured gain or the reason for keeping padding."""
    path = artifact.path
    subject = {
        "rewrite": f"unpad {_VERSION}",
        "cores": str(cores),
        "threads": str(config.intra_op_threads),
    }

    def make(target: Path) -> dict[str, object]:
        unpadded, text = _unpad_if_faster(path, target, config.intra_op_threads)
        return {"unpadded": unpadded, "text": text}

    try:
        if config.reproducible:
            raise ArtifactFault(
                "found reproducible: true, expected false: kernels are chosen by the number of "
                "valid tokens in a batch, which depends on other requests"
            )
        target, known = _cached(config, artifact, subject, make)
    except ArtifactFault as fault:
        return path, f"padding is kept: {fault}"
    return (target if known["unpadded"] else path), str(known["text"])


def _in_int8(config: RuntimeConfig, artifact: Artifact) -> tuple[Path, str]:
    """Return the graph in INT8, and its measured error. Raises ArtifactFault."""

    def make(target: Path) -> dict[str, object]:
        found = write_int8(artifact.path, target, threads=config.intra_op_threads)
        return {"text": str(found)}

    try:
        target, known = _cached(config, artifact, {"rewrite": f"int8 rows {_VERSION}"}, make)
    except ArtifactFault as fault:
        raise type(fault)(f"parameter 'int8': {fault}") from fault
    return target, str(known["text"])


def _cached(
    config: RuntimeConfig,
    artifact: Artifact,
    subject: Mapping[str, str],
    make: Callable[[Path], dict[str, object]],
) -> tuple[Path, Mapping[str, object]]:
    """Return the path of the rewritten graph, and the result of `make`, from the cache if possible.

    The cache's key has `subject` in addition to graph, processor and ONNX Runtime. `make` writes
    no file if the original graph is kept. Raises ArtifactFault.
    """
    if config.device_kind != "cpu" or artifact.engine != "onnxruntime":
        raise ArtifactFault(
            f"found engine {artifact.engine} on {config.device_kind}, expected onnxruntime on cpu, "
            "where rewritten graphs were measured"
        )
    root = cache_root()
    if root is None:
        raise ArtifactFault(
            "found no cache folder for the rewritten graph, expected GE_RUNTIME_CACHE to name one"
        )
    try:
        subject = {
            "content": ContentHashes().of(artifact.path),
            "onnxruntime": metadata.version("onnxruntime"),
            # The gain depends on the processor. INT8 products saturate on processors without VNNI.
            "processor": processor(),
            **subject,
        }
        file = CacheFile(root / "graphs", config.model, subject, "rewritten graphs")
        target = file.path.with_suffix(".onnx")
        known = file.load()
        if known is not None and (target.is_file() or known.get("unpadded") is False):
            return target, {**known, "text": f"{known.get('text')}; kept in {target.parent}"}
        target.parent.mkdir(parents=True, exist_ok=True)
        made = make(target)
    except (OSError, metadata.PackageNotFoundError) as error:
        raise ArtifactFault(f"the graph cannot be stored in {root / 'graphs'}: {error}") from error
    file.save(made)
    return target, made


def _unpad_if_faster(path: Path, target: Path, threads: int) -> tuple[bool, str]:
    """Rewrite, verify and measure a graph; return whether `target` was written, and the reason."""
    try:
        with replacing(target) as own:
            found, gain = unpad_and_prove(path, own, threads)
            if any(gain.ratios[name] < least for name, least in LEAST_GAIN.items()):
                raise ArtifactFault(f"the graph is not faster without padding: {gain}")
    except ArtifactFault as fault:
        return False, f"padding is kept: {fault}"
    return True, f"{found}; work per CPU second {gain}"


def unpad_and_prove(path: Path, target: Path, threads: int) -> tuple[Unpadded, Gain]:
    """Write the graph in `path` without padding to `target`, verify and measure it.

    Raises ArtifactFault if the graph cannot be rewritten, or its answers changed.
    """
    found = unpad(path)
    save(found.model, path, target)
    proof = Proof(path, target, found, threads)
    proof.verify()
    return found, proof.measure()
