"""`ge-runtime convert`: converts a config.pbtxt of the C++ backend npu_ge to ge_runtime."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.cli.backend import NAME
from ge_runtime.cli.command import EXIT_NO, Command, axis_sizes
from ge_runtime.cli.config_pbtxt import config_file, edit_config, parse
from ge_runtime.cli.convert.npu_ge_parameters import (
    SHAPES,
    ConversionReport,
    DeclaredDims,
    convert_parameters,
    gear_parameters,
)
from ge_runtime.config import ConfigErrors, RuntimeConfig
from ge_runtime.config.model_tensors import read_instances, read_max_batch_size, read_tensors
from ge_runtime.config.parameters import split_names
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import ROWS

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


_NPU_GE: Final = "npu_ge"
_INSTANCES: Final = "instance_group"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Values that the user adds to the configuration."""

    axes: Mapping[str, Sequence[str]]
    """Tensor -> names of its -1 dims; for outputs also relations such as `tokens // 2`."""
    limits: Mapping[str, int]
    device_ids: str | None
    drop: frozenset[str]
    """Names of parameters and fields that may be dropped."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion. The text is valid only if there are no problems."""

    text: str
    notes: Sequence[str]
    problems: Sequence[str]


def convert(name: str, text: str, options: ConvertOptions) -> Conversion:
    """Convert the configuration `text` of the model `name`.

    The text is edited: everything that is not converted stays unchanged, including comments.

    Raises:
        ValueError: the text is not in protobuf's text format.
        ConfigFault: the backend is not npu_ge, or the tensors cannot be read.
    """
    config = {"name": name, **parse(text)}
    faults = ConfigErrors(name)
    if config.get("backend") != _NPU_GE:
        faults.add(
            "backend",
            repr(config.get("backend")),
            f"'{_NPU_GE}'. No other backend can be converted",
        )
    max_batch_size = read_max_batch_size(config, faults)
    inputs, outputs = (_tensors(config, section, faults) for section in ("input", "output"))
    instances = read_instances(config, faults)
    faults.raise_any()
    report = ConversionReport(options.drop)
    given = _texts(config, report)
    kept = convert_parameters(given, report)
    _name_cards(kept, options, report)
    if instances > 1:
        why = (
            "in npu_ge instances are threads that share engines, in ge_runtime each is a process "
            "with its own engines"
        )
        cure = "use one instance, and device_exec_blocks for parallel engines"
        report.refuse(_INSTANCES, f"{instances} instances", why, cure)
    sizes = {}
    if inputs and outputs:
        sizes = gear_parameters(
            inputs,
            outputs,
            _shape_options(given, report),
            report,
            batched=max_batch_size > 0,
            names=options.axes,
            limits=options.limits,
        )
        _note_sizes_without_gears(sizes, max_batch_size, report)
    else:
        why = "npu_ge reads them from the ONNX file, ge_runtime from config.pbtxt"
        report.require("input and output", "not both present", why, "declare them with their dims")
    new = edit_config(
        text,
        texts={"backend": NAME},
        without=lambda field: field == _INSTANCES and _INSTANCES in report.used,
        keep=lambda key: key in kept and kept[key] == given.get(key),
        more={**{key: value for key, value in kept.items() if given.get(key) != value}, **sizes},
    )
    # Checked as at load, unless there are problems, which would cause further errors here.
    problems = report.problems or _load_errors(name, new)
    unused = sorted({*report.dropped} - report.used)
    unknown = [f"--drop {each}: found nothing to drop" for each in unused]
    return Conversion(new, report.notes, [*problems, *unknown])


def _tensors(
    config: Mapping[str, object], section: str, faults: ConfigErrors
) -> list[DeclaredDims]:
    tensors = read_tensors(config, section, faults)
    return [
        # config.pbtxt declares numbers only.
        DeclaredDims(each.spec.name, tuple(dim for dim in each.spec.dims if isinstance(dim, int)))
        for each in tensors.values()
    ]


def _texts(config: Mapping[str, object], report: ConversionReport) -> dict[str, str]:
    """Return the parameters that have a string value; refuse the others."""
    entries = config.get("parameters")
    texts = {}
    for key, entry in entries.items() if isinstance(entries, Mapping) else ():
        value = entry.get("string_value") if isinstance(entry, Mapping) else None
        if isinstance(value, str):
            texts[str(key)] = value
        else:
            report.refuse(str(key), repr(entry), 'expected value { string_value: "..." }')
    return texts


def _name_cards(kept: dict[str, str], options: ConvertOptions, report: ConversionReport) -> None:
    if options.device_ids is not None and "device_ids" in kept:
        why = "config.pbtxt already has device_ids"
        report.require("--device-ids", options.device_ids, why, "change it there")
    if options.device_ids is not None:
        kept["device_ids"] = options.device_ids
    if "device_ids" in kept:
        return
    why = "npu_ge then uses every visible card; ge_runtime needs a list"
    report.require("device_ids", "not set", why, "use --device-ids, e.g. 0 or 0,1")


def _shape_options(
    given: Mapping[str, str], report: ConversionReport
) -> dict[str, tuple[str, str]]:
    """Return the options of GE that define sizes, each with its parameter and value."""
    options: dict[str, tuple[str, str]] = {}
    for name, value in given.items():
        family, _, option = name.partition(".")
        if family in ("graph", "session") and option in SHAPES:
            other, same = options.setdefault(option, (name, value))
            if same != value:
                report.require(name, value, f"{other} has {same}", "remove one of the two")
    return options


def _note_sizes_without_gears(
    sizes: Mapping[str, str], max_batch_size: int, report: ConversionReport
) -> None:
    """Note the axes that npu_ge executes at any size, and an .om only at the largest."""
    gears, limits = (
        {key.removeprefix(prefix): value for key, value in sizes.items() if key.startswith(prefix)}
        for prefix in ("gears.", "limit.")
    )
    geared = {axis for axes in gears for axis in axes.split(",")}
    largest = {ROWS: max_batch_size} | {axis: int(size) for axis, size in limits.items()}
    free = [f"{a} {size}" for a, size in largest.items() if size > 1 and a not in geared]
    if free:
        report.notes.append(
            f"{', '.join(free)}: without gears an .om has only this size, and requests are padded "
            "to it; `ge-runtime gears` chooses gears"
        )


def _load_errors(name: str, text: str) -> list[str]:
    """Return the errors of loading the new configuration."""
    try:
        RuntimeConfig.parse({"name": name, **parse(text)}, cores=1)
    except ConfigFault as fault:
        return list(fault.faults)
    return []
