"""`ge-runtime convert`: converts a config.pbtxt of the C++ backend npu_ge to ge_runtime."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ge_runtime.cli.command import EXIT_NO, Command, axis_sizes
from ge_runtime.cli.config_pbtxt import config_file
from ge_runtime.cli.convert.conversion import ConvertOptions, convert
from ge_runtime.config.parameters import split_names
from ge_runtime.errors import ConfigFault

_DESCRIPTION: Final = """\
Convert a config.pbtxt of Huawei's C++ backend npu_ge to ge_runtime.

CONFIG_PBTXT is the file, or the model's folder. Parameters with the same meaning are kept. Gears
that are options of GE (ge.inputShape, ge.dynamicDims) become axes, limits and gears. The backend
becomes "ge" (see `ge-runtime backend`). Everything else stays unchanged, including comments.

If something cannot be converted, nothing is written, and all problems are printed with their
reasons and fixes. Notes name the parameters that are omitted without effect.
"""

_EPILOG: Final = """\
npu_ge uses the first *.onnx that it finds; ge_runtime uses model.onnx or model.om in the version
folder. Notes name the files to rename or compile. Options in --backend-config=npu_ge,... and
GE_NPU_CONFIG are not converted, because they are not in config.pbtxt.

examples:
  ge-runtime convert resnet/config.pbtxt --output new/resnet/config.pbtxt
  ge-runtime convert encoder --axes ids=tokens --axes mask=tokens --limit tokens=512 \\
      --device-ids 0,1 --drop profiling

Exit codes: 0 converted, 1 something cannot be converted, 2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG_PBTXT", help="the file, or the model's folder")
    add("--output", type=Path, metavar="FILE", help="output file (default: standard output)")
    add(
        "--axes",
        action="append",
        default=[],
        type=_axes,
        metavar="TENSOR=AXIS,...",
        help="names for the -1 dims of a tensor, for outputs also relations (default: the tensor's "
        "name and the dim's index)",
    )
    add(
        "--limit",
        action="append",
        default=[],
        type=axis_sizes,
        metavar="AXIS=SIZE,...",
        help="largest size of an axis (default: that of the gears)",
    )
    add("--device-ids", metavar="ID,...", help="the cards, if config.pbtxt has no device_ids")
    add(
        "--drop",
        action="append",
        default=[],
        metavar="NAME",
        help="drop a refused parameter or field; may be repeated",
    )


def _run(given: argparse.Namespace) -> int:
    file = config_file(given.config)
    name = file.resolve().parent.name
    options = ConvertOptions(
        axes=dict(given.axes),
        limits={axis: size for each in given.limit for axis, size in each.items()},
        device_ids=given.device_ids,
        drop=frozenset(given.drop),
    )
    try:
        conversion = convert(name, file.read_text(encoding="utf-8"), options)
    except ValueError as error:
        raise ConfigFault(name, [f"{file.name}: {error}"]) from error
    for note in (*conversion.notes, *notes_on(file.resolve().parent)):
        print(f"note: {note}", file=sys.stderr)
    if conversion.problems:
        for problem in conversion.problems:
            print(f"cannot be converted: {problem}", file=sys.stderr)
        return EXIT_NO
    if given.output is None:
        print(conversion.text, end="")
    else:
        given.output.write_text(conversion.text, encoding="utf-8")
    return 0


COMMAND: Final = Command(
    name="convert",
    help="convert a config.pbtxt of the C++ backend npu_ge",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def _axes(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, names = text.partition("=")
    if not equals or not all(split_names(names)):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a tensor and names, e.g. image=height,width"
        )
    return name.strip(), split_names(names)


_ARTIFACTS: Final = ("model.onnx", "model.om")


def notes_on(folder: Path) -> Iterator[str]:
    """Yield a note for each version folder whose graph must be renamed or compiled.

    npu_ge uses any ONNX file below a version folder, or otherwise a TensorFlow file.
    """
    for version in sorted(folder.glob("*/")):
        if not version.name.isdecimal() or any((version / name).is_file() for name in _ARTIFACTS):
            continue
        own = f"{version.name}/model"
        if found := _found(folder, version, "*.onnx"):
            yield f"{found}: ge_runtime expects {own}.onnx. Rename it, then run `ge-runtime build`"
        elif found := _found(folder, version, "*.pb"):
            yield f"{found}: no engine reads it. Compile it to {own}.om with `atc --framework=3`"


def _found(folder: Path, version: Path, pattern: str) -> str:
    return " or ".join(str(file.relative_to(folder)) for file in sorted(version.rglob(pattern)))
