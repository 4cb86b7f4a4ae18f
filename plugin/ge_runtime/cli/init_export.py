"""Writes and proves the models of an exported folder, for `ge-runtime init`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ge_runtime.cli.config_pbtxt import parse
from ge_runtime.discovery.configuration import Configuration
from ge_runtime.discovery.export import Export
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.labels import Labels
from ge_runtime.discovery.pipeline import Pipeline
from ge_runtime.discovery.pipeline_proof import prove_pipeline
from ge_runtime.discovery.proof import Proof
from ge_runtime.errors import RuntimeFault


def proven_pipeline(
    export: Export,
    folder: Path,
    found: Configuration,
    labels: Labels | None,
    graph: Graph,
    progress: Callable[[str], None],
) -> tuple[str, Proof]:
    """Write the models of an export with the most rows in a request that is proven.

    Args:
        export: The folder.
        folder: The folder of the ensemble; those of the other models are beside it. That of the
            graph is complete except for its config.pbtxt.
        found: The configuration of the graph.
        labels: The names of the graph's values.
        graph: The open graph.
        progress: Called with a line for each step.

    Returns:
        The text of all config.pbtxt, with the names of their models, and the proof.

    Raises:
        RuntimeFault: The files do not match the graph, or an answer differs.
    """
    reason = ""
    while True:
        pipeline = Pipeline(export, folder.name, found, labels, reason)
        texts = pipeline.write(folder.parent)
        configs = {name: {"name": name, **parse(text)} for name, text in texts.items()}
        progress("load and compare all models" + (", requests of one row" if reason else ""))
        try:
            proof = prove_pipeline(pipeline, graph, folder.parent, configs)
        except RuntimeFault as fault:
            if pipeline.rows == 1:
                raise
            reason = " ".join(str(fault).split())
        else:
            shown = (f"{name}/config.pbtxt:\n{text}" for name, text in texts.items())
            return "\n".join(shown), proof
