"""`ge-runtime compare`: a compiled file on a card against its graph on the CPU, layer by layer."""

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
from ge_runtime.cli.compare.differences import Difference, difference
from ge_runtime.cli.compare.dumped_layers import DumpedLayers
from ge_runtime.cli.compare.executions import CardGraphs, Cpu
from ge_runtime.cli.compare.report import Comparison, First, Layer
from ge_runtime.cli.compare.search import first_beyond
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
Execute model.om on a card and model.onnx on the CPU, on the same inputs, and tell how far their
outputs are apart. Where one is beyond the limit, the first layer that loses the accuracy is looked
for. CANN dumps what each operator of model.om gives, and each layer is held against the CPU's;
those without a counterpart, since they were fused, are listed. Where CANN gives no dump (not in
containers), or with --by parts, the graph is cut at some of its tensors, the part before them is
compiled as model.om was and executed, and so on between the last that is within and the first that
is beyond. The layer that is named is beyond while all that it takes is within; it is also measured
by itself.

Inputs are seeded values of their ranges in config.pbtxt, at one gear, with masks and the like as
the runtime makes them; or arrays of a file. `relative` is the norm of the difference over that of
the CPU's tensor, of whole numbers the share that differs; `largest` the largest difference of
elements.
A tensor that is made an output may keep operators from being fused: parts are no exact copy of what
the whole graph computes. A dump is.
"""

_EPILOG: Final = """\
examples:
  ge-runtime compare my_models/ge_classifier
  ge-runtime compare my_models/text_encoder --gear batch=8,tokens=128 --plot layers.png
  ge-runtime compare my_models/text_encoder --inputs real.npz --every --format json > layers.json
  ge-runtime compare my_models/text_encoder --by parts --cuts 16

Exit codes: 0 all outputs are within the limit, 1 they are not, 2 arguments or input that cannot be
used.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add("--device", metavar="npu:N", help="the card (config.pbtxt's first, else npu:0)")
    add("--gear", type=axis_sizes, metavar="AXIS=SIZE,...", help="of the file (its smallest)")
    add("--inputs", type=Path, metavar="NPZ",
        help="arrays by the names of the graph's inputs, of the sizes of a gear")  # fmt: skip
    add("--seed", type=partial(whole, least=0), default=0, metavar="N",
        help="of the inputs, without --inputs (0)")  # fmt: skip
    add("--limit", type=_limit, default=_LIMIT, metavar="X",
        help=f"relative error that is allowed ({_LIMIT})")  # fmt: skip
    add("--by", choices=("dump", "parts"),
        help="how layers are measured (dump, and parts where CANN gives none)")  # fmt: skip
    add("--every", action="store_true", help="measure every layer, whatever outputs are like")
    add("--cuts", type=whole, default=_CUTS, metavar="N",
        help=f"tensors that one compiled part tells ({_CUTS})")  # fmt: skip
    add("--plot", type=Path, metavar="PNG", help="draw the errors; needs matplotlib")
    add("--format", choices=("text", "json"), default="text", help="of what is printed (text)")


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
    return EXIT_NO if found.beyond else 0


COMMAND: Final = Command(
    name="compare",
    help="hold a compiled model against its graph on the CPU, layer by layer",
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
    """Hold the model in `folder` against its graph; the arguments are those of the command.

    Raises RuntimeFault or OSError.
    """
    ensure_model(folder)
    version_dir = version_folder(folder, version)
    config = read_runtime_config(folder)
    onnx = version_dir / "model.onnx"
    if config.stages:
        raise ArtifactFault(f"{folder}: found stages, expected one graph, model.onnx and model.om")
    if not onnx.is_file():
        raise ArtifactFault(f"{onnx}: found nothing, expected the graph that .om files are made of")
    place = device or (config.devices[0] if config.device_kind == "npu" else "npu:0")
    with CardGraphs(place, folder, version_dir / "model.om", config) as card:
        shapes = card.shapes()
        if inputs is not None:
            with np.load(inputs) as file:
                fed: dict[str, Array] = dict(file)
            told = f"inputs of {inputs}"
        else:
            chosen, fed = seeded(folder, version_dir, config, _signature(onnx), shapes, gear, seed)
            sizes = {ROWS: chosen.rows, **chosen.extents} if config.batched else chosen.extents
            at = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
            told = f"inputs of seed {seed}" + (f" at {at}" if at else "")
        cpu = Cpu()
        expected = cpu.run(onnx, fed)
        found = card.run_file(card.om, fed, [*expected])
        outputs = {name: difference(found[name], expected[name]) for name in expected}
        title = f"{config.model}, version {version_dir.name}: {card.om.name} on {place}, "
        title += f"{card.hardware}, against {onnx.name} on the CPU"
        told_of = partial(Comparison, title, told, limit, outputs)
        if not every and not _beyond(outputs, limit):
            return told_of([], 0, 0, None)
        graph = CutGraph(onnx)
        operators = card.dump(fed, [*expected]) if by != "parts" else []
        if operators:
            dumped = DumpedLayers(graph, cpu, operators, fed, limit)
            first = dumped.look(outputs)
            return told_of(
                dumped.measured, dumped.count, 0, first, True, dumped.untold, dumped.others
            )
        if by == "dump":
            raise ArtifactFault(
                f"--by dump: found no dump of {card.om.name}, expected CANN to write one: its "
                "documents say that it does not in containers; --by parts needs none"
            )
        layers = Layers(graph, cpu, card, fed, limit)
        first = layers.look(outputs, every=every, cuts=cuts)
        return told_of(layers.measured, layers.count, card.compiled, first)


class Layers:
    """The tensors of a graph, each measured once, by parts of it that are compiled."""

    def __init__(
        self, graph: CutGraph, cpu: Cpu, card: CardGraphs, inputs: Mapping[str, Array], limit: float
    ) -> None:
        self._graph = graph
        self._cpu = cpu
        self._card = card
        self._inputs = inputs
        self._limit = limit
        self._found: dict[str, Difference] = {}

    @property
    def count(self) -> int:
        return len(self._graph.tensors)

    @property
    def measured(self) -> list[Layer]:
        return sorted(map(self._layer, self._found), key=lambda layer: layer.place)

    def look(self, outputs: Mapping[str, Difference], *, every: bool, cuts: int) -> First | None:
        """The first layer that is beyond, if an output is. every: measure all, too."""
        if every:
            tensors = self._graph.tensors
            for start in range(0, len(tensors), cuts):
                self.beyond(tensors[start : start + cuts])
        wrong = [name for name, own in outputs.items() if own.beyond(self._limit)]
        known = [
            name for name in wrong if name in self._graph.tensors and self.beyond([name])[name]
        ]
        if not known:
            return None
        found = first_beyond(self._graph, known[0], self.beyond, cuts)
        return First(self._layer(found), self._alone(found))

    def beyond(self, names: Sequence[str]) -> dict[str, bool]:
        """Whether each of these tensors is."""
        new = [name for name in names if name not in self._found]
        if new:
            expected = self._cpu.run(self._graph.computing(new, None), self._inputs)
            # Sequences and the like have no place on a card; what they are made of is looked at.
            arrays = {n: array for n, array in expected.items() if isinstance(array, np.ndarray)}
            part = self._graph.computing([*arrays], arrays)
            found = self._card.run(part, self._inputs) if arrays else {}
            for name in new:
                self._found[name] = (
                    difference(found[name], arrays[name])
                    if name in arrays
                    else Difference(float("nan"), 0.0, float("nan"))
                )
        return {name: self._found[name].beyond(self._limit) for name in names}

    def _alone(self, name: str) -> Difference | None:
        graph = self._graph
        values = dict(self._inputs)
        needed = [*graph.taken(name), *graph.fixed(name), name]
        values |= self._cpu.run(graph.computing(needed, None), self._inputs)
        cut = graph.alone(name, values)
        if cut is None:
            return None
        model, feeds = cut
        return difference(self._card.run(model, feeds)[name], values[name])

    def _layer(self, name: str) -> Layer:
        node = self._graph.node(name)
        place, own = self._graph.place(name), self._found[name]
        return Layer(place, name, node.name or name, node.op_type, own)


def seeded(
    folder: Path,
    version_dir: Path,
    config: RuntimeConfig,
    signature: Signature,
    shapes: Sequence[Shapes],
    sizes: Mapping[str, int] | None,
    seed: int,
) -> tuple[Gear, dict[str, Array]]:
    """A gear, and all inputs of the graph at it, as the runtime would feed them.

    shapes: that the file executes. sizes: of the gear; None for the smallest. Raises RuntimeFault.
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
        known = "; ".join(
            ",".join(f"{axis}={size}" for axis, size in {ROWS: g.rows, **g.extents}.items())
            for g in gears
        )
        asked = ",".join(f"{axis}={size}" for axis, size in (sizes or {}).items())
        raise ArtifactFault(f"--gear: found {asked}, expected sizes of one of: {known}")
    values = Values(config)
    blocks = [values.block(gear.extents, (seed, row)) for row in range(gear.rows)]
    layout = Layout.of(blocks, rows=gear.rows, extents=gear.extents, packed=config.packing)
    fed: dict[str, Array] = {}
    for feed in contract.feeds:
        batch = np.zeros(feed.shape(layout), feed.spec.dtype.numpy)
        feed.write(layout, batch)
        fed[feed.spec.name] = batch if config.batched else batch[0]
    return gear, fed


def _signature(onnx: Path) -> Signature:
    engine = OnnxEngine.open(onnx, threads=1)
    try:
        return engine.signature
    finally:
        engine.close()


def _beyond(outputs: Mapping[str, Difference], limit: float) -> bool:
    return any(own.beyond(limit) for own in outputs.values())


def _limit(text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a number of at least 0, e.g. 0.01"
        )
    return limit
