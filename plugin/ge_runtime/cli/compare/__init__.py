"""`ge-runtime compare`: compares a compiled file with its graph on the CPU, layer by layer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.batching.gears import Gear
from ge_runtime.batching.ragged import Layout
from ge_runtime.cli.command import EXIT_NO, Command, add_model, axis_sizes, whole
from ge_runtime.cli.compare.cut_graphs import CutGraph
from ge_runtime.cli.compare.layers import CardGraphs, CutLayers, DumpedLayers, run_on_cpu
from ge_runtime.cli.compare.report import Comparison, difference
from ge_runtime.cli.config_pbtxt import ensure_model, read_runtime_config
from ge_runtime.cli.inspect import config_for, version_folder
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.base import Shapes, Signature
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import Gearing, with_compiled_gears
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ArtifactFault
from ge_runtime.specs import ROWS, Array
from ge_runtime.verification.probes import Values

_LIMIT: Final = 0.01
_CUTS: Final = 8

_DESCRIPTION: Final = """\
Execute model.om on a card and model.onnx on the CPU with the same inputs, and print the difference
of their outputs. If an output is beyond the limit, the command finds the first layer that loses
accuracy: a layer that is beyond the limit while all its inputs are within it.

Layers are measured in one of two ways:
  dump   CANN dumps the output of every operator of model.om, and each layer is compared with its
         result on the CPU. Fused layers without a counterpart are listed. CANN writes no dumps in
         containers.
  parts  The graph is cut at some tensors, and the part before them is compiled like model.om. The
         search continues between the last tensor within the limit and the first beyond it. A cut
         tensor is not fused, so a part may compute other numbers than the whole graph.

Inputs are random values in the ranges of config.pbtxt, at one gear, with generated masks; or the
arrays of a file. `relative` is the norm of the difference divided by the norm of the CPU's tensor,
or for integers and booleans the share of different elements. `largest` is the largest difference of
two elements.
"""

_EPILOG: Final = """\
examples:
  ge-runtime compare my_models/ge_classifier
  ge-runtime compare my_models/text_encoder --gear batch=8,tokens=128 --plot layers.png
  ge-runtime compare my_models/text_encoder --inputs real.npz --every --format json > layers.json
  ge-runtime compare my_models/text_encoder --by parts --cuts 16

Exit codes: 0 all outputs are within the limit, 1 an output is not, 2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add("--device", metavar="npu:N",
        help="the card (default: the first of config.pbtxt, otherwise npu:0)")  # fmt: skip
    add("--gear", type=axis_sizes, metavar="AXIS=SIZE,...",
        help="a gear of model.om (default: the smallest)")  # fmt: skip
    add("--inputs", type=Path, metavar="NPZ",
        help="arrays with the names of the graph's inputs and the sizes of a gear")  # fmt: skip
    add("--seed", type=partial(whole, least=0), default=0, metavar="N",
        help="seed of the random inputs (default: 0)")  # fmt: skip
    add("--limit", type=_limit, default=_LIMIT, metavar="X",
        help=f"largest relative error that is allowed (default: {_LIMIT})")  # fmt: skip
    add("--by", choices=("dump", "parts"),
        help="how layers are measured (default: dump, or parts if there is no dump)")  # fmt: skip
    add("--every", action="store_true", help="measure every layer, even if all outputs are right")
    add("--cuts", type=whole, default=_CUTS, metavar="N",
        help=f"largest number of tensors in one compiled part (default: {_CUTS})")  # fmt: skip
    add("--plot", type=Path, metavar="PNG", help="plot the errors; needs matplotlib")
    add("--format", choices=("text", "json"), default="text", help="output format (default: text)")


def _run(given: argparse.Namespace) -> int:
    found = compare(
        given.folder,
        given.version,
        device=given.device,
        gear=given.gear,
        inputs=given.inputs,
        seed=given.seed,
        limit=given.limit,
        by=given.by,
        every=given.every,
        cuts=given.cuts,
    )
    if given.plot is not None:
        found.draw(given.plot)
    if given.format == "json":
        print(json.dumps(found.as_json(), indent=2))
    else:
        print("\n".join(found.lines()))
    return EXIT_NO if found.exceeds_limit else 0


COMMAND: Final = Command(
    name="compare",
    help="compare a compiled model with its graph on the CPU, layer by layer",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def compare(
    folder: Path,
    version: int | None,
    *,
    device: str | None = None,
    gear: Mapping[str, int] | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    limit: float = _LIMIT,
    by: str | None = None,
    every: bool = False,
    cuts: int = _CUTS,
) -> Comparison:
    """Compare the model in `folder` with its graph. The arguments are those of the command.

    Raises:
        RuntimeFault: the model, its graph or the card cannot be used.
        OSError: a file cannot be read.
    """
    ensure_model(folder)
    version_dir = version_folder(folder, version)
    config = read_runtime_config(folder)
    onnx = version_dir / "model.onnx"
    _ensure_one_graph(folder, config, onnx)
    place = device or (config.devices[0] if config.device_kind == "npu" else "npu:0")
    with CardGraphs(place, folder, version_dir / "model.om", config) as card:
        if inputs is not None:
            with np.load(inputs) as file:
                fed: dict[str, Array] = dict(file)
            source = f"inputs of {inputs}"
        else:
            chosen, fed = random_inputs(
                folder, version_dir, config, _signature(onnx), card.shapes(), gear, seed
            )
            source = f"inputs of seed {seed}{_gear_text(config, chosen)}"
        expected = run_on_cpu(onnx, fed)
        found = card.run_file(card.om, fed, [*expected])
        outputs = {name: difference(found[name], expected[name]) for name in expected}
        title = f"{config.model}, version {version_dir.name}: {card.om.name} on {place}, "
        title += f"{card.hardware}, against {onnx.name} on the CPU"
        result = partial(Comparison, title, source, limit, outputs)
        if not every and not any(each.exceeds(limit) for each in outputs.values()):
            return result()
        graph = CutGraph(onnx)
        operators = card.dump(fed, [*expected]) if by != "parts" else []
        if operators:
            dumped = DumpedLayers(graph, operators, fed, limit)
            first = dumped.search(outputs)
            return result(
                layers=dumped.measured,
                count=len(graph.tensors),
                first=first,
                dumped=True,
                unmatched_layers=dumped.unmatched,
                unmatched_operators=dumped.unmatched_operators,
            )
        if by == "dump":
            raise ArtifactFault(
                f"--by dump: found no dump of {card.om.name}, expected CANN to write one, which it "
                "does not do in containers. Use --by parts"
            )
        layers = CutLayers(graph, card, fed, limit)
        first = layers.search(outputs, every=every, cuts=cuts)
        return result(
            layers=layers.measured, count=len(graph.tensors), compiled=card.compiled, first=first
        )


def _ensure_one_graph(folder: Path, config: RuntimeConfig, onnx: Path) -> None:
    """Raise ArtifactFault for a model of several graphs, or without model.onnx."""
    if config.stages:
        raise ArtifactFault(
            f"{folder}: found parameter 'stages', expected one graph, model.onnx and model.om. Put "
            "each stage into its own folder"
        )
    if not onnx.is_file():
        raise ArtifactFault(f"{onnx}: file not found, expected the graph that model.om is made of")


def _gear_text(config: RuntimeConfig, gear: Gear) -> str:
    sizes = {ROWS: gear.rows, **gear.extents} if config.batched else gear.extents
    text = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
    return f" at {text}" if text else ""


def random_inputs(
    folder: Path,
    version_dir: Path,
    config: RuntimeConfig,
    signature: Signature,
    shapes: Sequence[Shapes],
    sizes: Mapping[str, int] | None,
    seed: int,
) -> tuple[Gear, dict[str, Array]]:
    """Return a gear, and graph inputs of its size as the runtime would make them.

    Args:
        folder: the model's folder.
        version_dir: the model's version folder.
        config: the model's configuration.
        signature: the signature of model.onnx.
        shapes: the shapes that model.om is compiled for.
        sizes: sizes that the gear must have; None for the smallest gear.
        seed: the seed of the random values.

    Raises:
        RuntimeFault: no gear has the sizes, or the graph does not agree with the configuration.
    """
    config = config_for(folder, config, signature)
    config = with_compiled_gears(config, shapes, "model.om")
    contract = Contract.between(config, signature)
    gears = [*Gearing.of(config, version_dir).gears.every()]
    for gear in gears:
        own = {ROWS: gear.rows, **gear.extents}
        if sizes is None or sizes.items() <= own.items():
            break
    else:
        known = "; ".join(_sizes_text({ROWS: each.rows, **each.extents}) for each in gears)
        raise ArtifactFault(f"--gear: found {_sizes_text(sizes or {})}, expected one of: {known}")
    values = Values(config)
    blocks = [values.block(gear.extents, (seed, row)) for row in range(gear.rows)]
    layout = Layout.of(blocks, rows=gear.rows, extents=gear.extents, packed=config.packing)
    fed: dict[str, Array] = {}
    for feed in contract.feeds:
        batch = np.zeros(feed.shape(layout), feed.spec.dtype.numpy)
        feed.write(layout, batch)
        fed[feed.spec.name] = batch if config.batched else batch[0]
    return gear, fed


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _signature(onnx: Path) -> Signature:
    engine = OnnxEngine.open(onnx, threads=1)
    try:
        return engine.signature
    finally:
        engine.close()


def _limit(text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of at least 0")
    return limit
