"""Finds the configuration with the most batching that loads and answers like the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ge_runtime.cli.config_pbtxt import parse
from ge_runtime.discovery.configuration import MARKS, Configuration
from ge_runtime.discovery.discover import Discovery
from ge_runtime.discovery.export import Export
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.labels import Labels
from ge_runtime.discovery.outputs import Unfitted
from ge_runtime.discovery.pipeline import Pipeline
from ge_runtime.discovery.pipeline_proof import prove_pipeline
from ge_runtime.discovery.proof import Proof, prove
from ge_runtime.errors import ArtifactFault, RuntimeFault


class Unproven(ArtifactFault):
    """No configuration loads and answers like the graph."""


def proven(discovery: Discovery, model: Path, source: str) -> tuple[Configuration, Proof]:
    """Return the configuration with the most batching that loads and answers like the graph.

    config.pbtxt is written to the folder `model`, which has the graph. Its first comment names
    `source`.

    Raises:
        Unproven: No configuration loads and answers like the graph.
        ArtifactFault: No configuration was found.
    """
    tried: list[str] = []
    reasons: list[str] = []
    for restriction, configuration in _candidates(discovery):
        if reasons:
            configuration.notes.append(f"{restriction}: {reasons[-1]}")
        text = configuration.text(source)
        (model / "config.pbtxt").write_text(text, encoding="utf-8")
        discovery.progress(f"load and compare{f', {restriction}' if restriction else ''}")
        try:
            config = {"name": model.name, **parse(text)}
            return configuration, prove(discovery.study, model / "1", config)
        except RuntimeFault as fault:
            tried.append(restriction or "without restrictions")
            reasons.append(_one_line(fault))
    refused = "; ".join(map(": ".join, zip(tried, reasons, strict=True)))
    raise Unproven(
        f"found no configuration that answers like {discovery.graph.engine}, tried {len(tried)}: "
        f"{refused}"
    )


def _candidates(discovery: Discovery) -> Iterator[tuple[str, Configuration]]:
    """Yield configurations with less and less batching, and the restriction of each."""
    try:
        first = discovery.configuration()
    except Unfitted as error:
        alone = discovery.configuration(batched=False)
        alone.notes.append(f"No rows: the size of an output follows no relation: {error}.")
        yield "", alone
        return
    yield "", first
    restrictions: dict[str, Mapping[str, str]] = {}
    if discovery.sample:
        # The warm-up and the measurement of costs execute invented values.
        unmeasured = {"warmup": "none", "cost": "launch_us=100, element_ns=1, element2_ns=0"}
        restrictions["without executions of invented values at load"] = unmeasured
    equal = {
        f"padding.{axis}": "equal"
        for own in first.parameters
        if own.family in MARKS or own.value == "neutral"
        for axis in (own.value.split(", ") if own.family in MARKS else [own.name])
    }
    if equal:
        restrictions["requests of equal sizes only"] = equal
    if first.max_batch_size > 1:
        one_row = {"gears.batch": "1"}
        restrictions["one row in each execution"] = one_row
        if equal:
            restrictions["one row in each execution, without padding"] = {**equal, **one_row}
    for restriction, parameters in restrictions.items():
        restricted = replace(
            first,
            max_batch_size=int(parameters.get("gears.batch", first.max_batch_size)),
            notes=[*first.notes],
            parameters=[own for own in first.parameters if own.key not in parameters],
        )
        for key, value in parameters.items():
            restricted.add(key, value, "The model was refused without this; see above.")
        yield restriction, restricted
    if first.max_batch_size:
        yield "no rows", discovery.configuration(batched=False)


def proven_pipeline(
    export: Export,
    folder: Path,
    found: Configuration,
    labels: Labels | None,
    graph: Graph,
    progress: Callable[[str], None],
) -> tuple[str, Proof]:
    """Write the models of an export; requests may have several rows if that is proven.

    `folder` is the folder of the ensemble, and the folders of the other models are beside it. The
    folder of the graph is complete except for its config.pbtxt, `found`.

    Returns the text of all config.pbtxt, with the names of their models, and the proof. Raises
    RuntimeFault if the files do not match the graph, or an answer differs.
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
            reason = _one_line(fault)
        else:
            shown = (f"{name}/config.pbtxt:\n{text}" for name, text in texts.items())
            return "\n".join(shown), proof


def _one_line(fault: Exception) -> str:
    return " ".join(str(fault).split())
