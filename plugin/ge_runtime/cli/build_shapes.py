"""What each stage of a model is compiled for: its inputs' shapes at every gear of the model.

The gears are those of config.pbtxt. What a later stage takes has the shapes that the earlier stages
give at each of them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ge_runtime.batching.gears import Gear
from ge_runtime.cli.inspect import config_for
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.analysis.onnx_file import OnnxFile
from ge_runtime.engines.analysis.onnx_graph import OnnxGraph
from ge_runtime.engines.base import Signature
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.footprint import Footprint
from ge_runtime.engines.gearing import Gearing
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.engines.wiring import Shape, Wiring, foresee
from ge_runtime.errors import ArtifactFault
from ge_runtime.planning.ascend_gears import CompileTarget, ascend_options
from ge_runtime.specs import ROWS, Dim, TensorSpec


def shape_flags(
    folder: Path, version_dir: Path, config: RuntimeConfig
) -> tuple[dict[str, list[str]], list[str]]:
    """ATC's flags for all gears, by stage; and what is worth knowing of them.

    folder: the model's. Raises ConfigFault, and ArtifactFault for what cannot be compiled.
    """
    sources = _sources(version_dir, config.stages or ("model",))
    signatures = {stage: _signature(path) for stage, path in sources.items()}
    wiring = Wiring.of(signatures, [spec.name for spec in config.outputs])
    config = config_for(folder, config, wiring.signature)
    contract = Contract.between(config, wiring.signature)
    _refuse_what_has_no_rows(config)
    gearing = Gearing.of(config, version_dir)
    footprint = Footprint(contract, config.batched, config.packing)
    gears = gearing.gears.every()
    graphs = _Graphs(sources, wiring)
    shapes = [graphs.shapes(footprint.shapes(gear)) for gear in gears]
    flags = {
        stage: _flags(sources[stage], _target(signature, gears, shapes))
        for stage, signature in signatures.items()
    }
    limits = {**({ROWS: config.rows} if config.batched else {}), **config.limits}
    geared = {axis for axes in gearing.tables for axis in axes}
    fixed = [f"{axis} {limit}" for axis, limit in limits.items() if axis not in geared]
    return flags, [f"without gears, so always {', '.join(fixed)}"] if fixed else []


class _Graphs:
    """The .onnx files of all stages, asked for the shapes of what they give."""

    def __init__(self, sources: Mapping[str, Path], wiring: Wiring) -> None:
        self._sources = sources
        self._wiring = wiring
        self._parsed: dict[str, OnnxGraph | None] = {}

    def shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Of all that stages take, from those of the model's inputs. Raises ArtifactFault."""
        known = dict(inputs)
        for stage, signature in self._wiring.stages.items():
            handed = [t.name for t in signature.outputs if t.name in self._wiring.spans]
            known.update(foresee(signature, known))
            if known.keys() >= {*handed}:
                continue
            known.update(self._inferred(stage, known))
            if lacking := [name for name in handed if name not in known]:
                raise ArtifactFault(
                    f"{self._sources[stage]}: found no sizes for what it gives the next stage, "
                    f"{', '.join(lacking)}, expected them to follow from those of its inputs, as "
                    f"the next stage is compiled for them: {self._cure(stage)}"
                )
        return known

    def _inferred(self, stage: str, known: Mapping[str, Shape]) -> dict[str, Shape]:
        """By shape inference, where the names of sizes do not tell."""
        if stage not in self._parsed:
            self._parsed[stage] = OnnxGraph.read(OnnxFile.read(self._sources[stage]))
        graph = self._parsed[stage]
        return graph.shapes(known) if graph else {}

    def _cure(self, stage: str) -> str:
        if self._parsed[stage] is None:
            return "`pip install 'ge-runtime[plan]'` has them inferred"
        return "name its outputs' sizes after its inputs', or make it one graph with the next"


def _sources(version_dir: Path, stages: Sequence[str]) -> dict[str, Path]:
    sources = {stage: version_dir / f"{stage}.onnx" for stage in stages}
    if missing := [path for path in sources.values() if not path.is_file()]:
        names = ", ".join(path.name for path in missing)
        raise ArtifactFault(f"{version_dir}: found no {names}, expected what .om files are made of")
    return sources


def _signature(path: Path) -> Signature:
    engine = OnnxEngine.open(path, threads=1)
    try:
        return engine.signature
    finally:
        engine.close()


def _refuse_what_has_no_rows(config: RuntimeConfig) -> None:
    """The inputs whose shapes are not those of rows."""
    described = [name for entry in config.batch_inputs for name in entry.targets]
    if names := [f"input '{name}'" for name in (*config.offsets, *described)]:
        raise ArtifactFault(
            f"gears of '{config.model}': ATC cannot compile them: they cannot list "
            f"{'; '.join(names)}"
        )


def _target(
    signature: Signature, gears: Sequence[Gear], shapes: Sequence[Mapping[str, Shape]]
) -> CompileTarget:
    """The stage with its sizes at each gear of the model, those of fewest elements first.

    shapes: of all tensors, at each of the gears. What is equal at two of them is one gear here.
    """

    def elements(pair: tuple[Gear, Mapping[str, Shape]]) -> int:
        return sum(math.prod(pair[1][tensor.name]) for tensor in signature.inputs)

    ordered = sorted(zip(gears, shapes, strict=True), key=elements)
    rows = tuple(gear.rows for gear, _ in ordered)
    inputs: list[TensorSpec] = []
    columns: dict[str, tuple[int, ...]] = {}  # axis: its size at each gear
    for tensor in signature.inputs:
        dims: list[Dim] = []
        own = [at[tensor.name] for _, at in ordered]
        for place, sizes in enumerate(zip(*own, strict=True)):
            if len({*sizes}) == 1:
                dims.append(sizes[0])
                continue
            axis = ROWS if place == 0 and sizes == rows else f"{tensor.name}[{place}]"
            columns[axis] = sizes
            dims.append(axis)
        inputs.append(TensorSpec(tensor.name, tensor.dtype, tuple(dims)))
    points = tuple(dict.fromkeys(zip(*columns.values(), strict=True)))
    tables = {tuple(columns): points} if columns else {}
    return CompileTarget(inputs=tuple(inputs), outputs=(), batched=False, limits={}, tables=tables)


def _flags(source: Path, target: CompileTarget) -> list[str]:
    options = ascend_options(target)
    if not options.atc:
        raise ArtifactFault(f"{source}: ATC cannot compile its gears: {options.note}")
    return [text for option in options.atc for text in shlex.split(option)]
