"""`ge-runtime build`: compiles .onnx files to .om files for the gears of config.pbtxt.

The input shapes of a later stage are the output shapes of the earlier stages at each gear.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from ge_runtime.batching.gears import Gear
from ge_runtime.cli.command import Command, add_model
from ge_runtime.cli.config_pbtxt import ensure_model, read_runtime_config
from ge_runtime.cli.inspect import config_for, version_folder
from ge_runtime.config import ATC_FILES, ATC_FLAGS, RuntimeConfig, misused_flag
from ge_runtime.engines.analysis.onnx_file import OnnxFile, read_signature
from ge_runtime.engines.analysis.onnx_graph import OnnxGraph
from ge_runtime.engines.artifact import chip_file
from ge_runtime.engines.base import Signature
from ge_runtime.engines.chain import Shape, Wiring, infer_shapes
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import Footprint, Gearing, with_fixed_batch
from ge_runtime.errors import ArtifactFault, NoDevice
from ge_runtime.npu.driver.atc import (
    Atc,
    BuildRecord,
    content_of,
    image_conf,
    own_precision,
    sha256_of,
    with_images,
    write_conf,
)
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.driver.driver import UNKNOWN_CHIP
from ge_runtime.planning.ascend_gears import CompileTarget, ascend_options
from ge_runtime.specs import ROWS, Dim, TensorSpec

_PRECISION: Final = "ge.exec.precision_mode_v2"

_NAME_CHIP: Final = "specify the chip, e.g. `--soc-version Ascend910B3`"

_DESCRIPTION: Final = """\
Compile a model for an Ascend card: model.onnx to model.om in the same version folder. With
`stages`, each stage is compiled.

The shapes are every combination of the gears in config.pbtxt. Axes without gears, and rows without
gears.batch, have only the size of their limit, and requests are padded to it. `auto` gears are
chosen as at load. The input shapes of a later stage are the output shapes of the earlier stages.

The command needs CANN's compiler `atc`. With --soc-version it needs no card. It writes a record
next to each file, e.g. model.om.json, with the digests of both files, the options and the compiler.
If none of these has changed, nothing is compiled.

With several --soc-version, each chip gets its own files, e.g. model.910b3.om and model.310p3.om. At
load the file for the card's chip is used, otherwise model.om.
"""

_EPILOG: Final = """\
Precision: ATC's default computes FP32 graphs in FP16. Here the default is `origin`, the types of
the graph, and `fp16` on 310 and 310P, whose matrix units lack FP32. --precision or the parameter
graph.ge.exec.precision_mode_v2 selects another mode.

Other flags of atc are parameters atc.<flag>, or --atc, which takes precedence. Examples are
operators that keep their precision, banks of AOE, and the options of quantised models. Flags that
the runtime sets itself are refused, and the error names the replacement.

examples:
  ge-runtime build model_repository/text_encoder --soc-version Ascend910B3
  ge-runtime build model_repository/text_encoder --soc-version Ascend910B3 --soc-version Ascend310P3
  ge-runtime build model_repository/ge_classifier --precision fp16
  ge-runtime build model_repository/ge_classifier --atc op_precision_mode=softmax.ini

Exit codes: 0 the .om files are up to date, 2 invalid arguments or input, or atc failed.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add(
        "--soc-version",
        metavar="CHIP",
        action="append",
        default=[],
        help="e.g. Ascend910B3 (default: the first card of this machine); may be repeated",
    )
    add(
        "--precision",
        metavar="MODE",
        help="atc's --precision_mode_v2 (default: origin; fp16 on 310 and 310P)",
    )
    add(
        "--atc",
        metavar="FLAG=VALUE",
        type=_atc_flag,
        action="append",
        default=[],
        help="another flag of atc, e.g. op_select_implmode=high_precision; may be repeated",
    )


def _run(given: argparse.Namespace) -> int:
    ensure_model(given.folder)
    folder = version_folder(given.folder, given.version)
    lines = build(given.folder, folder, given.soc_version, given.precision, dict(given.atc))
    for line in lines:
        print(line)
    return 0


COMMAND: Final = Command(
    name="build",
    help="compile a model for an Ascend card",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def build(
    folder: Path,
    version_dir: Path,
    chips: Sequence[str],
    precision: str | None,
    further: Mapping[str, str] | None = None,
) -> list[str]:
    """Compile the .om files in `version_dir` that are missing or out of date.

    Args:
        folder: the model's folder.
        version_dir: its version folder.
        chips: chips to compile for; with several, each chip gets its own files, see `chip_file`.
            () for the chip of the first card.
        precision: the precision mode; None for the mode in config.pbtxt, or else the chip's
            default.
        further: flags of ATC that override those of config.pbtxt; paths are relative to the current
            folder.

    Returns lines that say what was done. Raises RuntimeFault or OSError.
    """
    config = read_runtime_config(folder)
    shapes, notes = shape_flags(folder, version_dir, config)
    chips = list(dict.fromkeys(chips)) or [_first_card()]
    passed = [
        *_passed(config.atc_flags, folder, config.atc_flags.keys() - (further or {}).keys()),
        *_passed(further or {}, Path(), further or {}),
    ]
    atc = Atc.find()
    lines: list[str] = []
    made = False
    halved: list[str] = []
    for chip, (stage, own) in product(chips, shapes.items()):
        source, om = version_dir / f"{stage}.onnx", version_dir / f"{stage}.om"
        inserted = [] if not own.conf else [_inserted(om, own.conf)]
        if len(chips) > 1:
            om = chip_file(om, chip)
        options = dict(config.ge_options)
        if precision or _PRECISION not in options:
            options[_PRECISION] = precision or own_precision(chip)
        others = [f"{ATC_FLAGS[option]}={value}" for option, value in sorted(options.items())]
        decided = (f"--soc_version={chip}", *own.flags, *others)
        given = [*inserted, *passed]
        flags = (*decided, *(f"--{each.flag}={each.value}" for each in given))
        files = {each.flag: each.content for each in given if each.content}
        record = BuildRecord(_digest(source), flags, atc.identity, files)
        if record.describes(om):
            done = f"up to date with {source.name} and these options"
        else:
            resolved = [f"--{each.flag}={each.resolved}" for each in given]
            atc.compile(source.resolve(), om, (*decided, *resolved))
            record.write(om)
            done, made = f"made with {shlex.join(flags)}", True
            if not (precision or _PRECISION in config.ge_options) and own_precision(chip) == "fp16":
                halved.append(chip)
        lines.append(f"{om}: {done}")
    notes = [
        *notes,
        *(
            f"{chip} has no FP32 in its matrix units, so FP32 became FP16"
            for chip in dict.fromkeys(halved)
        ),
    ]
    if made and config.device_kind != "npu":
        devices = ", ".join(config.devices)
        notes = [
            *notes,
            f"config.pbtxt has devices: {devices}; .om files need cards, e.g. npu:0",
        ]
    return [*lines, *notes] if made else lines


@dataclass(frozen=True, slots=True)
class _Passed:
    """A flag of the user for ATC."""

    flag: str
    value: str
    """The recorded value; paths as given, because a model folder may move."""
    resolved: str
    """The value for ATC; paths are absolute."""
    content: str | None
    """SHA-256 of the file or folder in the value; None for other flags."""


def _passed(flags: Mapping[str, str], home: Path, wanted: Collection[str]) -> list[_Passed]:
    """Return the flags in `wanted`, with paths relative to `home`. Raises ArtifactFault."""
    passed = []
    for flag, value in sorted(flags.items()):
        if flag not in wanted:
            continue
        if flag not in ATC_FILES:
            passed.append(_Passed(flag, value, value, None))
            continue
        path = (home / value).resolve()
        try:
            passed.append(_Passed(flag, value, str(path), content_of(path)))
        except OSError as error:
            raise ArtifactFault(
                f"atc's --{flag}: {path}: {error.strerror}, expected a readable file"
            ) from error
    return passed


def _inserted(om: Path, content: str) -> _Passed:
    path = write_conf(om, content)
    return _Passed("insert_op_conf", path.name, str(path.resolve()), content_of(path))


def _atc_flag(text: str) -> tuple[str, str]:
    """Parse an argument of --atc. Raises ArgumentTypeError."""
    flag, equals, value = text.removeprefix("--").partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected FLAG=VALUE")
    if expected := misused_flag(flag):
        raise argparse.ArgumentTypeError(f"{flag}: found {value!r}, expected {expected}")
    return flag, value


def _digest(source: Path) -> str:
    """Return the SHA-256 of the graph and of its external weights, if it has any."""
    weights = [source.parent / name for name in sorted(OnnxFile.read(source).elsewhere)]
    digests = [sha256_of(path) for path in (source, *weights) if path.is_file()]
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


def _first_card() -> str:
    try:
        card = PROCESS_CARDS.acquire(0)
    except NoDevice as fault:
        raise NoDevice(f"{fault}; or {_NAME_CHIP}") from fault
    try:
        if card.soc_name == UNKNOWN_CHIP:
            raise NoDevice(f"{card.name} does not report its chip: {_NAME_CHIP}")
        return card.soc_name
    finally:
        PROCESS_CARDS.release(card)


class StageFlags(NamedTuple):
    """ATC's options for one stage."""

    flags: list[str]
    conf: str
    """Content of --insert_op_conf; "" without images."""


def shape_flags(
    folder: Path, version_dir: Path, config: RuntimeConfig
) -> tuple[dict[str, StageFlags], list[str]]:
    """Return ATC's flags for all gears by stage, and notes for the user.

    Raises ConfigFault or ArtifactFault.
    """
    sources = _sources(version_dir, config.stages or ("model",))
    signatures = {stage: read_signature(path) for stage, path in sources.items()}
    wiring = Wiring.of(signatures, config.results)
    config = with_fixed_batch(config_for(folder, config, wiring.signature), wiring.signature)
    contract = Contract.between(config, wiring.signature)
    _refuse_inputs_without_rows(config)
    gearing = Gearing.of(config, version_dir)
    footprint = Footprint.of(config, contract)
    gears = gearing.gears.every()
    graphs = _StageShapes(sources, wiring)
    shapes = [graphs.shapes(footprint.shapes(gear)) for gear in gears]
    rows = max(gear.rows for gear in gears)
    flags: dict[str, StageFlags] = {}
    for stage, signature in signatures.items():
        own = _flags(sources[stage], _target(signature, gears, shapes))
        conf = image_conf(config, signature, rows)
        own = with_images(sources[stage], own) if conf else own
        flags[stage] = StageFlags(own, conf)
    limits = {**({ROWS: config.rows} if config.batched else {}), **config.limits}
    geared = {axis for axes in gearing.tables for axis in axes}
    fixed = [f"{axis} {limit}" for axis, limit in limits.items() if axis not in geared]
    return flags, [f"axes without gears have one size: {', '.join(fixed)}"] if fixed else []


class _StageShapes:
    """Computes the output shapes of all stages."""

    def __init__(self, sources: Mapping[str, Path], wiring: Wiring) -> None:
        self._sources = sources
        self._wiring = wiring
        self._parsed: dict[str, OnnxGraph | None] = {}

    def shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of all inputs of the stages, given the shapes of the model's inputs.

        Raises ArtifactFault.
        """
        known = dict(inputs)
        for stage, signature in self._wiring.stages.items():
            passed = [t.name for t in signature.outputs if t.name in self._wiring.spans]
            known.update(infer_shapes(signature, known))
            if known.keys() >= {*passed}:
                continue
            known.update(self._inferred(stage, known))
            if missing := [name for name in passed if name not in known]:
                raise ArtifactFault(
                    f"{self._sources[stage]}: found outputs of unknown size, {', '.join(missing)}, "
                    "expected sizes that follow from the sizes of inputs, because the next stage "
                    f"is compiled for them: {self._cure(stage)}"
                )
        return known

    def _inferred(self, stage: str, known: Mapping[str, Shape]) -> dict[str, Shape]:
        """Infer shapes that do not follow from the names of dims."""
        if stage not in self._parsed:
            self._parsed[stage] = OnnxGraph.read(OnnxFile.read(self._sources[stage]))
        graph = self._parsed[stage]
        return graph.shapes(known) if graph else {}

    def _cure(self, stage: str) -> str:
        if self._parsed[stage] is None:
            return "`pip install 'ge-runtime[plan]'` to infer them"
        return "give dims of outputs the names of equal dims of inputs, or merge the two stages"


def _sources(version_dir: Path, stages: Sequence[str]) -> dict[str, Path]:
    sources = {stage: version_dir / f"{stage}.onnx" for stage in stages}
    if missing := [path for path in sources.values() if not path.is_file()]:
        names = ", ".join(path.name for path in missing)
        raise ArtifactFault(f"{version_dir}: found no {names}, expected the graphs to compile")
    return sources


def _refuse_inputs_without_rows(config: RuntimeConfig) -> None:
    """Raise ArtifactFault for inputs whose first dim does not count rows."""
    described = [name for entry in config.batch_inputs for name in entry.targets]
    if names := [f"input '{name}'" for name in (*config.offsets, *described)]:
        raise ArtifactFault(f"gears of '{config.model}': ATC does not support {'; '.join(names)}")


def _target(
    signature: Signature, gears: Sequence[Gear], shapes: Sequence[Mapping[str, Shape]]
) -> CompileTarget:
    """Return the stage with its sizes at each gear of the model, ordered by elements.

    `shapes` has the shapes of all tensors at each gear. Gears at which the stage has equal shapes
    are merged.
    """

    def elements(pair: tuple[Gear, Mapping[str, Shape]]) -> int:
        return sum(math.prod(pair[1][tensor.name]) for tensor in signature.inputs)

    ordered = sorted(zip(gears, shapes, strict=True), key=elements)
    rows = tuple(gear.rows for gear, _ in ordered)
    inputs: list[TensorSpec] = []
    columns: dict[str, tuple[int, ...]] = {}  # axis -> its size at each gear
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
