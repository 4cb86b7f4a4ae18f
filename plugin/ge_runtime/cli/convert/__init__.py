"""`ge-runtime convert`: a config.pbtxt of the C++ backend npu_ge, made one of ge_runtime."""

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
Make a config.pbtxt of Huawei's C++ backend npu_ge one of ge_runtime.

CONFIG_PBTXT is the file, or the model's folder. Parameters of npu_ge are kept where they mean the
same, and otherwise replaced: gears that are options of GE (ge.inputShape, ge.dynamicDims) become
axes, limits and gears. The backend becomes "ge" (see `ge-runtime backend`). Everything else stays
as it was, comments too.

What cannot be kept is refused, all of it at once, with the reason and what to do. Nothing is
written then. What is left out because nothing is lost is told.
"""

_EPILOG: Final = """\
npu_ge takes the first *.onnx it finds; ge_runtime takes model.onnx or model.om in the version
folder, and what has to be renamed or compiled is told. Options in --backend-config=npu_ge,... and
GE_NPU_CONFIG are not in config.pbtxt, and are not seen here.

examples:
  ge-runtime convert resnet/config.pbtxt --output new/resnet/config.pbtxt
  ge-runtime convert encoder --axes ids=tokens --axes mask=tokens --limit tokens=512 \\
      --device-ids 0,1 --drop profiling

Exit codes: 0 converted, 1 something cannot be kept, 2 arguments or input that cannot be used.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG_PBTXT", help="the file, or the model's folder")
    add("--output", type=Path, metavar="FILE", help="where it is written (standard output)")
    add(
        "--axes",
        action="append",
        default=[],
        type=_axes,
        metavar="TENSOR=AXIS,...",
        help="names for the -1 of a tensor's dims, for outputs also relations (the tensor's name "
        "and the dim's place)",
    )
    add(
        "--limit",
        action="append",
        default=[],
        type=axis_sizes,
        metavar="AXIS=SIZE,...",
        help="the largest size of an axis (the gears')",
    )
    add("--device-ids", metavar="ID,...", help="the cards, where config.pbtxt names none")
    add(
        "--drop",
        action="append",
        default=[],
        metavar="NAME",
        help="lose what is refused under this name",
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
            print(f"cannot be kept: {problem}", file=sys.stderr)
        return EXIT_NO
    if given.output is None:
        print(conversion.text, end="")
    else:
        given.output.write_text(conversion.text, encoding="utf-8")
    return 0


COMMAND: Final = Command(
    name="convert",
    help="make a config.pbtxt of the C++ backend npu_ge one of ge_runtime",
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


_TAKEN: Final = ("model.onnx", "model.om")


def notes_on(folder: Path) -> Iterator[str]:
    """What to do with the graphs of a model's folder, a line for each version that needs it.

    npu_ge takes any ONNX file below a version's folder, and if there is none one of TensorFlow.
    """
    for version in sorted(folder.glob("*/")):
        if not version.name.isdecimal() or any((version / name).is_file() for name in _TAKEN):
            continue
        own = f"{version.name}/model"
        if found := _found(folder, version, "*.onnx"):
            yield f"{found}: ge_runtime takes {own}.onnx: rename it, then `ge-runtime build`"
        elif found := _found(folder, version, "*.pb"):
            yield f"{found}: no engine takes it: `atc --framework=3` makes {own}.om of it"


def _found(folder: Path, version: Path, pattern: str) -> str:
    return " or ".join(str(file.relative_to(folder)) for file in sorted(version.rglob(pattern)))
