"""`ge-runtime build`: .om files of .onnx files, with the gears that config.pbtxt has."""

from __future__ import annotations

import argparse
import shlex
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ge_runtime.ascend.atc import Atc, Record, sha256_of
from ge_runtime.ascend.card import PROCESS_CARDS
from ge_runtime.cli.arguments import add_model, new_command
from ge_runtime.cli.build_shapes import shape_flags
from ge_runtime.cli.inspect import version_folder
from ge_runtime.cli.model_config import ensure_model, read_runtime_config
from ge_runtime.config import ATC_FLAGS
from ge_runtime.engines.analysis.onnx_file import OnnxFile
from ge_runtime.errors import NoDevice

if TYPE_CHECKING:
    from ge_runtime.cli.arguments import Subparsers

_PRECISION: Final = "ge.exec.precision_mode_v2"

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
"""

_EPILOG: Final = """\
Precision: ATC alone would compute FP32 graphs in FP16. Here it is `origin`, the graph's own types,
unless --precision or the parameter graph.ge.exec.precision_mode_v2 says otherwise.

examples:
  ge-runtime build model_repository/text_encoder --soc-version Ascend910B3
  ge-runtime build model_repository/ge_classifier --precision fp16

Exit codes: 0 the .om files are there, 2 arguments or input that cannot be used, or atc failed.
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
    ensure_model(given.folder)
    folder = version_folder(given.folder, given.version)
    for line in build(given.folder, folder, given.soc_version, given.precision):
        print(line)
    return 0


def build(
    folder: Path, version_dir: Path, soc_version: str | None, precision: str | None
) -> list[str]:
    """Make the .om files in `version_dir` that are not there as they would be made; what was done.

    soc_version: None for the first card's. precision: None for what config.pbtxt says, or origin.
    Raises ConfigFault, ArtifactFault, NoDevice or OSError.
    """
    config = read_runtime_config(folder)
    shapes, notes = shape_flags(folder, version_dir, config)
    options = dict(config.ge_options)
    options[_PRECISION] = precision or options.get(_PRECISION, "origin")
    chip = f"--soc_version={soc_version or _first_card()}"
    others = [f"{ATC_FLAGS[option]}={value}" for option, value in sorted(options.items())]
    atc = Atc.find()
    lines: list[str] = []
    made = False
    for stage, own in shapes.items():
        source, om = version_dir / f"{stage}.onnx", version_dir / f"{stage}.om"
        flags = (chip, *own, *others)
        record = Record(_digest(source), flags, atc.identity)
        if record.describes(om):
            done = f"nothing to do, it was made of this {source.name} with these options"
        else:
            atc.compile(source.resolve(), om, flags)
            record.write(om)
            done, made = f"made with {shlex.join(flags)}", True
        lines.append(f"{om}: {done}")
    if made and config.device_kind != "npu":
        devices = ", ".join(config.devices)
        notes = [
            *notes,
            f"config.pbtxt says devices: {devices}; .om files are served on npu:0 and others",
        ]
    return [*lines, *notes] if made else lines


def _digest(source: Path) -> str:
    """SHA-256 of the graph and its weights, which torch's exporter puts into a file beside it."""
    beside = [source.parent / name for name in sorted(OnnxFile.read(source).elsewhere)]
    digests = [sha256_of(path) for path in (source, *beside) if path.is_file()]
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


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
