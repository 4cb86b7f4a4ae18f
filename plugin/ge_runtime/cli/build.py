"""`ge-runtime build`: .om files of .onnx files, with the gears that config.pbtxt has.

What a later stage takes has the shapes that the earlier stages give at each of these gears.
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

from ge_runtime.ascend.atc import Atc, BuildRecord, content_of, own_precision, sha256_of
from ge_runtime.ascend.card import PROCESS_CARDS
from ge_runtime.ascend.driver import UNKNOWN_CHIP
from ge_runtime.batching.gears import Gear
from ge_runtime.cli.command import Command, add_model
from ge_runtime.cli.config_pbtxt import ensure_model, read_runtime_config
from ge_runtime.cli.image_inputs import image_conf, with_images, write_conf
from ge_runtime.cli.inspect import config_for, version_folder
from ge_runtime.config import ATC_FILES, ATC_FLAGS, RuntimeConfig, misused_flag
from ge_runtime.engines.analysis.onnx_file import OnnxFile
from ge_runtime.engines.analysis.onnx_graph import OnnxGraph
from ge_runtime.engines.artifact import chip_file
from ge_runtime.engines.base import Signature
from ge_runtime.engines.chain import Shape, Wiring, foresee
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import Footprint, Gearing, with_fixed_batch
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ArtifactFault, NoDevice
from ge_runtime.planning.ascend_gears import CompileTarget, ascend_options
from ge_runtime.specs import ROWS, Dim, TensorSpec

_PRECISION: Final = "ge.exec.precision_mode_v2"

_NAME_IT: Final = "name the chip that it is to be made for, e.g. `--soc-version Ascend910B3`"

_DESCRIPTION: Final = """\
Compile a model for an Ascend card: model.om of model.onnx, in the same version folder; with
`stages`, the .om of each.

The shapes are those of config.pbtxt: every combination of its gears; axes without gears, and rows
without gears.batch, have the one size of their limit. So each dimension that changes has to be in
`gears.<axes>`, or requests are padded to the limit. `auto` gears are derived as at load. A later
stage has the shapes that the earlier ones give at these gears.

Needs CANN's compiler `atc`, and no card if --soc-version is given. Beside each file a record is
written, e.g. model.om.json: the digests of both files, the options and the compiler. Where nothing
of it has changed, nothing is compiled.

With --soc-version more than once each chip has files of its own, model.910b3.om and model.310p3.om;
at load those of the card that is there are taken, else model.om.
"""

_EPILOG: Final = """\
Precision: ATC alone would compute FP32 graphs in FP16. Here it is `origin`, the graph's own types,
and `fp16` on 310 and 310P, whose matrix units have no FP32,
unless --precision or the parameter graph.ge.exec.precision_mode_v2 says otherwise.

Other flags of atc are parameters atc.<flag>, or --atc, which counts before them: which operators
keep their precision, banks of AOE, what a quantised model needs. Those that the runtime depends on
are refused, with what to use instead.

examples:
  ge-runtime build model_repository/text_encoder --soc-version Ascend910B3
  ge-runtime build model_repository/text_encoder --soc-version Ascend910B3 --soc-version Ascend310P3
  ge-runtime build model_repository/ge_classifier --precision fp16
  ge-runtime build model_repository/ge_classifier --atc op_precision_mode=softmax.ini

Exit codes: 0 the .om files are there, 2 arguments or input that cannot be used, or atc failed.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add(
        "--soc-version",
        metavar="CHIP",
        action="append",
        default=[],
        help="e.g. Ascend910B3 (that of the first card here); repeated, a file for each chip",
    )
    add(
        "--precision",
        metavar="MODE",
        help="atc's --precision_mode_v2 (origin; fp16 on 310, 310P)",
    )
    add(
        "--atc",
        metavar="FLAG=VALUE",
        type=_atc_flag,
        action="append",
        default=[],
        help="any other flag of atc, e.g. op_select_implmode=high_precision; repeatable",
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
    """Make the .om files in `version_dir` that are not there as they would be made; what was done.

    chips: of several each has files of its own, see `chip_file`; none is that of the first card.
    precision: None for what config.pbtxt says, or
    what the chip can. further: flags of ATC, before those of config.pbtxt; paths are from here.
    Raises ConfigFault, ArtifactFault, NoDevice or OSError.
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
            done = f"nothing to do, it was made of this {source.name} with these options"
        else:
            found = [f"--{each.flag}={each.found}" for each in given]
            atc.compile(source.resolve(), om, (*decided, *found))
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
            f"config.pbtxt says devices: {devices}; .om files are served on npu:0 and others",
        ]
    return [*lines, *notes] if made else lines


@dataclass(frozen=True, slots=True)
class _Passed:
    """A flag that is passed on to ATC."""

    flag: str
    value: str
    """As it was given, and is recorded: a model's folder may move."""
    found: str
    """As ATC gets it: of files their whole path."""
    content: str | None
    """SHA-256 of the file, or folder, that it names; None where it names none."""


def _passed(flags: Mapping[str, str], home: Path, wanted: Collection[str]) -> list[_Passed]:
    """Those of the flags that are wanted. home: where paths begin. Raises ArtifactFault."""
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
                f"atc's --{flag}: found {path}: {error.strerror}, expected the file that it names"
            ) from error
    return passed


def _inserted(om: Path, content: str) -> _Passed:
    path = write_conf(om, content)
    return _Passed("insert_op_conf", path.name, str(path.resolve()), content_of(path))


def _atc_flag(text: str) -> tuple[str, str]:
    """An argument of --atc. Raises ArgumentTypeError."""
    flag, equals, value = text.removeprefix("--").partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected FLAG=VALUE")
    if expected := misused_flag(flag):
        raise argparse.ArgumentTypeError(f"{flag}: found {value!r}, expected {expected}")
    return flag, value


def _digest(source: Path) -> str:
    """SHA-256 of the graph and its weights, which torch's exporter puts into a file beside it."""
    weights = [source.parent / name for name in sorted(OnnxFile.read(source).elsewhere)]
    digests = [sha256_of(path) for path in (source, *weights) if path.is_file()]
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


def _first_card() -> str:
    try:
        card = PROCESS_CARDS.acquire(0)
    except NoDevice as fault:
        raise NoDevice(f"{fault}; or {_NAME_IT}") from fault
    try:
        if card.soc_name == UNKNOWN_CHIP:
            raise NoDevice(f"{card.name} does not tell which chip it is: {_NAME_IT}")
        return card.soc_name
    finally:
        PROCESS_CARDS.release(card)


class StageFlags(NamedTuple):
    """What ATC gets for one stage."""

    flags: list[str]
    conf: str
    """The content of --insert_op_conf; "" without images."""


def shape_flags(
    folder: Path, version_dir: Path, config: RuntimeConfig
) -> tuple[dict[str, StageFlags], list[str]]:
    """ATC's flags for all gears, by stage; and what is worth knowing of them.

    folder: the model's. Raises ConfigFault, and ArtifactFault for what cannot be compiled.
    """
    sources = _sources(version_dir, config.stages or ("model",))
    signatures = {stage: _signature(path) for stage, path in sources.items()}
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
    return flags, [f"without gears, so always {', '.join(fixed)}"] if fixed else []


class _StageShapes:
    """The .onnx files of all stages, asked for the shapes of what they give."""

    def __init__(self, sources: Mapping[str, Path], wiring: Wiring) -> None:
        self._sources = sources
        self._wiring = wiring
        self._parsed: dict[str, OnnxGraph | None] = {}

    def shapes(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shapes of all that stages take, from those of the model's inputs.

        Raises ArtifactFault.
        """
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


def _refuse_inputs_without_rows(config: RuntimeConfig) -> None:
    """The inputs whose shapes are not those of rows."""
    described = [name for entry in config.batch_inputs for name in entry.targets]
    if names := [f"input '{name}'" for name in (*config.offsets, *described)]:
        raise ArtifactFault(
            f"gears of '{config.model}': ATC does not support "
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
