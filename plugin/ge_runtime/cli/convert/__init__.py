"""`ge-runtime convert`: converts models of the C++ backend npu_ge to ge_runtime."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from ge_runtime.cli.command import EXIT_NO, EXIT_UNUSABLE, Command, axis_sizes
from ge_runtime.cli.config_pbtxt import config_file, parse
from ge_runtime.cli.convert.conversion import NPU_GE, ConvertOptions, convert
from ge_runtime.cli.convert.graph import graph_changes, graph_file
from ge_runtime.cli.init import add_strategy
from ge_runtime.config.parameters import split_names
from ge_runtime.engines.analysis.onnx_file import read_signature
from ge_runtime.errors import ArtifactFault, ConfigFault

_DESCRIPTION: Final = """\
Convert models of Huawei's C++ backend npu_ge to ge_runtime.

PATH is a config.pbtxt, a model's folder, or a model repository. A table on standard error lists
what is kept, changed and dropped, and why. The precision, the cards and the sizes of requests stay:
GE's default precision becomes explicit, a batch of any size becomes gears of 1, 2, 4, ... rows, and
gears that are options of GE become axes, limits and gears. Inputs and outputs that config.pbtxt
does not declare are read from the ONNX file. Everything else stays unchanged, including comments.

A model is not written if a part of it cannot be converted. All problems are printed with their
reasons and fixes.
"""

_EPILOG: Final = """\
npu_ge uses the first *.onnx that it finds; ge_runtime uses model.onnx or model.om in the version
folder. The table names the files to rename or compile. Options in GE_NPU_CONFIG, which replace
`ge.*` of the command line, are not read: give them as --backend-config.

examples:
  ge-runtime convert models --output new_models --server-command tritonserver \\
      --model-repository models --backend-config=npu_ge,ge.aicoreNum="12|10"
  ge-runtime convert resnet --strategy throughput --output new/resnet/config.pbtxt
  ge-runtime convert encoder --axes ids=tokens --limit tokens=512 --device-ids 0,1

Exit codes: 0 converted, 1 something cannot be converted, 2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, metavar="PATH", help="config.pbtxt, a model's folder, or a repository")
    add(
        "--output",
        type=Path,
        metavar="PATH",
        help="output file (default: standard output); for a repository a folder, which receives "
        "MODEL/config.pbtxt and may be the repository itself (default: only the tables)",
    )
    add(
        "--backend-config",
        action="append",
        default=[],
        metavar="npu_ge,KEY=VALUE",
        help="an option of tritonserver's command line; may be repeated. Options of other backends "
        "are ignored",
    )
    add(
        "--server-command",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="COMMAND",
        help="the command line that starts tritonserver, as the last option",
    )
    add_strategy(parser)
    add(
        "--axes",
        action="append",
        default=[],
        type=_axes,
        metavar="TENSOR=AXIS,...",
        help="names for the -1 dims of a tensor, for outputs also relations (default: the names in "
        "the ONNX file, otherwise the tensor's name and the dim's index)",
    )
    add(
        "--limit",
        action="append",
        default=[],
        type=axis_sizes,
        metavar="AXIS=SIZE,...",
        help="largest size of an axis (default: the largest size in the gears)",
    )
    add("--device-ids", metavar="ID,...", help="the cards, if there is no device_ids")
    add(
        "--drop",
        action="append",
        default=[],
        metavar="NAME",
        help="drop a refused parameter or field; may be repeated",
    )


def _run(given: argparse.Namespace) -> int:
    options = ConvertOptions(
        axes=dict(given.axes),
        limits={axis: size for each in given.limit for axis, size in each.items()},
        device_ids=given.device_ids,
        drop=frozenset(given.drop),
        settings=npu_ge_settings([*_backend_configs(given.server_command), *given.backend_config]),
        strategy=given.strategy,
    )
    files = sorted(given.config.glob("*/config.pbtxt")) if given.config.is_dir() else []
    if not files or config_file(given.config).is_file():
        return _convert_file(config_file(given.config), given.output, options)
    if options.axes or options.limits or options.drop:
        print(
            f"ge-runtime: {given.config}: found a repository, expected one model for --axes, "
            "--limit and --drop. Convert the model that needs them separately",
            file=sys.stderr,
        )
        return EXIT_UNUSABLE
    exits = []
    for file in files:
        name = file.parent.name
        print(f"{name}:", file=sys.stderr)
        if (backend := _parsed(file).get("backend")) != NPU_GE:
            print(f"kept     everything: its backend is {backend or 'not set'}", file=sys.stderr)
            continue
        target = given.output / name / file.name if given.output else None
        exits.append(_convert_file(file, target, options, prints=False))
    return max(exits, default=0)


def _parsed(file: Path) -> dict[str, object]:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigFault(file.resolve().parent.name, [f"{file.name}: {error}"]) from error


def _convert_file(
    file: Path, target: Path | None, options: ConvertOptions, *, prints: bool = True
) -> int:
    """Convert a config.pbtxt, and print its table; return the exit code."""
    _parsed(file)
    folder = file.resolve().parent
    signature = None
    if (graph := graph_file(folder)) is not None:
        try:
            signature = read_signature(graph)
        except ArtifactFault as fault:  # the declared tensors may be enough
            print(f"not used: {fault}", file=sys.stderr)
    text = file.read_text(encoding="utf-8")
    conversion = convert(folder.name, text, options, signature)
    for what, why in graph_changes(folder):
        conversion.report.change(what, why)
    print(*conversion.report.table(), sep="\n", file=sys.stderr)
    for problem in conversion.problems:
        print(f"cannot be converted: {problem}", file=sys.stderr)
    if conversion.problems:
        return EXIT_NO
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(conversion.text, encoding="utf-8")
    elif prints:
        print(conversion.text, end="")
    return 0


COMMAND: Final = Command(
    name="convert",
    help="convert models of the C++ backend npu_ge",
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


def _backend_configs(command: Sequence[str]) -> list[str]:
    """Return the values of --backend-config in a command line of tritonserver."""
    option = "--backend-config"
    joined = [word.partition("=")[2] for word in command if word.startswith(f"{option}=")]
    separate = [value for word, value in pairwise(command) if word == option]
    return [*joined, *separate]


def npu_ge_settings(values: Iterable[str]) -> dict[str, str]:
    """Return the settings of npu_ge among values of --backend-config; the last value counts."""
    pairs = (value.partition(",") for value in values)
    found = (setting.partition("=") for backend, _, setting in pairs if backend == NPU_GE)
    return {key: value.strip("\"'") for key, equals, value in found if equals}
