"""`ge-runtime build`: model.om of model.onnx, with the gears that config.pbtxt has."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ge_runtime.ascend.atc import Atc, Record, sha256_of
from ge_runtime.ascend.card import PROCESS_CARDS
from ge_runtime.cli.arguments import add_model, new_command
from ge_runtime.cli.inspect import config_for, version_folder
from ge_runtime.cli.model_config import read_runtime_config
from ge_runtime.config import ATC_FLAGS, RuntimeConfig
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import Gearing
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.errors import ArtifactFault, NoDevice
from ge_runtime.planning.ascend import ascend_options
from ge_runtime.planning.target import Target
from ge_runtime.specs import ROWS

if TYPE_CHECKING:
    from ge_runtime.cli.arguments import Subparsers

_PRECISION: Final = "ge.exec.precision_mode_v2"

_DESCRIPTION: Final = """\
Compile a model for an Ascend card: model.om of model.onnx, in the same version folder.

The shapes are those of config.pbtxt: every combination of its gears; axes without gears, and rows
without gears.batch, have the one size of their limit. So each dimension that changes has to be in
`gears.<axes>`, or requests are padded to the limit. `auto` gears are derived as at load.

Needs CANN's compiler `atc`, and no card if --soc-version is given. Beside model.om a record is
written, model.om.json: the digests of both files, the options and the compiler. Where nothing of it
has changed, nothing is compiled.
"""

_EPILOG: Final = """\
Precision: ATC alone would compute FP32 graphs in FP16. Here it is `origin`, the graph's own types,
unless --precision or the parameter graph.ge.exec.precision_mode_v2 says otherwise.

examples:
  ge-runtime build model_repository/text_encoder --soc-version Ascend910B3
  ge-runtime build model_repository/ge_classifier --precision fp16

Exit codes: 0 model.om is there, 2 arguments or input that cannot be used, or atc failed.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `build` to the commands."""
    parser = new_command(
        subparsers,
        "build",
        help_="compile a model for an Ascend card",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_model(parser)
    add = parser.add_argument
    add("--soc-version", metavar="CHIP", help="e.g. Ascend910B3 (that of the first card here)")
    add("--precision", metavar="MODE", help="atc's --precision_mode_v2 (origin)")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    folder = version_folder(given.folder, given.version)
    for line in build(given.folder, folder, given.soc_version, given.precision):
        print(line)
    return 0


def build(
    folder: Path, version_dir: Path, soc_version: str | None, precision: str | None
) -> list[str]:
    """Make model.om in `version_dir`, if it is not there as it would be made; what was done.

    soc_version: None for the first card's. precision: None for what config.pbtxt says, or origin.
    Raises ConfigFault, ArtifactFault, NoDevice or OSError.
    """
    config = read_runtime_config(folder)
    if config.stages:
        stages = ", ".join(config.stages)
        raise ArtifactFault(
            f"parameter 'stages': found {stages}, expected one model.onnx: on a card, graphs that "
            "run one after another are compiled as one, or are models of their own"
        )
    source, om = version_dir / "model.onnx", version_dir / "model.om"
    shapes, note = _shapes_of(folder, version_dir, config, source)
    options = dict(config.ge_options)
    options[_PRECISION] = precision or options.get(_PRECISION, "origin")
    flags = (
        f"--soc_version={soc_version or _first_card()}",
        *shapes,
        *(f"{ATC_FLAGS[option]}={value}" for option, value in sorted(options.items())),
    )
    atc = Atc.find()
    record = Record(sha256_of(source), flags, atc.identity)
    if record.describes(om):
        return [f"{om}: nothing to do, it was made of this model.onnx with these options"]
    atc.compile(source.resolve(), om, flags)
    record.write(om)
    if config.device_kind == "cpu":
        devices = ", ".join(config.devices)
        note = [
            *note,
            f"config.pbtxt says devices: {devices}; model.om is served on npu:0 and others",
        ]
    return [f"{om}: made with {shlex.join(flags)}", *note]


def _shapes_of(
    folder: Path, version_dir: Path, config: RuntimeConfig, source: Path
) -> tuple[list[str], list[str]]:
    if not source.is_file():
        expected = "expected what model.om is made of"
        raise ArtifactFault(f"{version_dir}: found no model.onnx, {expected}")
    engine = OnnxEngine.open(source, threads=1)
    try:
        config = config_for(folder, config, engine.signature)
        contract = Contract.between(config, engine.signature)
    finally:
        engine.close()
    return shape_flags(config, contract, Gearing.of(config, version_dir))


def shape_flags(
    config: RuntimeConfig, contract: Contract, gearing: Gearing
) -> tuple[list[str], list[str]]:
    """ATC's flags for all gears of a model, and what is worth knowing of them.

    Raises ArtifactFault if ATC has no words for them.
    """
    rows = {ROWS: config.rows} if config.batched else {}
    target = Target(
        inputs=tuple(feed.spec for feed in contract.feeds),
        outputs=contract.outputs,
        batched=config.batched,
        limits={**rows, **config.limits},
        tables=gearing.tables,
        unlisted=tuple(f"input '{name}'" for name in _shapeless(config)),
    )
    options = ascend_options(target)
    if not options.atc:
        raise ArtifactFault(f"gears of '{config.model}': ATC cannot compile them: {options.note}")
    flags = [text for option in options.atc for text in shlex.split(option)]
    geared = {axis for axes in gearing.tables for axis in axes}
    fixed = [f"{axis} {limit}" for axis, limit in target.limits.items() if axis not in geared]
    note = [f"without gears, so always {', '.join(fixed)}"] if fixed else []
    return flags, note


def _shapeless(config: RuntimeConfig) -> list[str]:
    """The inputs whose shapes are not those of rows."""
    described = (name for entry in config.batch_inputs for name in entry.targets)
    return [*config.offsets, *described]


def _first_card() -> str:
    try:
        card = PROCESS_CARDS.acquire(0)
    except NoDevice as fault:
        cure = "or name the chip that it is to be made for, e.g. `--soc-version Ascend910B3`"
        raise NoDevice(f"{fault}; {cure}") from fault
    try:
        return card.soc_name
    finally:
        PROCESS_CARDS.release(card)
