"""Convert the text of one npu_ge configuration to a ge_runtime configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.backend import NAME
from ge_runtime.cli.config_pbtxt import parse
from ge_runtime.cli.convert.config_edits import edit_config
from ge_runtime.cli.convert.gear_parameters import DeclaredDims, gear_parameters
from ge_runtime.cli.convert.npu_ge_parameters import SHAPES, ConversionReport, convert_parameters
from ge_runtime.config import ConfigErrors, RuntimeConfig
from ge_runtime.config.declared import read_instances, read_max_batch_size, read_tensors
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import ROWS

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
    problems = [str(problem) for problem in report.problems] or _load_errors(name, new)
    unused = sorted({*report.dropped} - report.used)
    problems += [f"--drop {each}: found nothing to drop" for each in unused]
    return Conversion(new, report.notes, problems)


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
