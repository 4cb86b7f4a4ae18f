"""Converts the config.pbtxt of a model from the backend npu_ge to ge_runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.cli.backend import NAME
from ge_runtime.cli.config_pbtxt import edit_config, edit_message, parse, quoted
from ge_runtime.cli.convert.graph import missing_sections, with_symbols
from ge_runtime.cli.convert.npu_ge_parameters import (
    PRECISION,
    SHAPES,
    DeclaredDims,
    batch_gears,
    convert_parameters,
    gear_parameters,
    with_command_line,
)
from ge_runtime.cli.convert.report import ConversionReport
from ge_runtime.config import ConfigErrors, RuntimeConfig
from ge_runtime.config.model_tensors import read_instances, read_max_batch_size, read_tensors
from ge_runtime.config.parameters import split_names
from ge_runtime.discovery.configuration import BATCHING_FIELDS, batching_fields, early_answers
from ge_runtime.engines.base import Signature
from ge_runtime.errors import ArtifactFault, ConfigFault
from ge_runtime.specs import ROWS

NPU_GE: Final = "npu_ge"
_INSTANCES: Final = "instance_group"
_BATCHING: Final = "dynamic_batching"
_MOST_BLOCKS: Final = 8
"""Largest `device_exec_blocks` to choose: npu_ge's manual advises at most 8 streams on a card."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Values that the user adds to the configuration."""

    axes: Mapping[str, Sequence[str]]
    """Names of the -1 dims of each tensor; for outputs also relations such as `tokens // 2`."""
    limits: Mapping[str, int]
    device_ids: str | None
    drop: frozenset[str]
    """Names of parameters and fields that may be dropped."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The VALUE of each --backend-config=npu_ge,KEY=VALUE, by KEY."""
    strategy: str = ""
    """One of STRATEGIES, or "" to keep what config.pbtxt has."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion. The text is valid only if there are no problems."""

    text: str
    report: ConversionReport
    problems: Sequence[str]


def convert(
    name: str, text: str, options: ConvertOptions, graph: Signature | None = None
) -> Conversion:
    """Convert the configuration `text` of the model `name`.

    The text is edited: everything that is not converted stays unchanged, including comments.

    Args:
        name: The model's name.
        text: The model's config.pbtxt.
        options: Values that the user adds.
        graph: The model's ONNX graph, if it has one.

    Raises:
        ValueError: The text is not in protobuf's text format.
        ConfigFault: The backend is not npu_ge, or the tensors cannot be read.
    """
    config = {"name": name, **parse(text)}
    faults = ConfigErrors(name)
    if config.get("backend") != NPU_GE:
        faults.add(
            "backend", repr(config.get("backend")), f"'{NPU_GE}'. No other backend can be converted"
        )
    max_batch_size = read_max_batch_size(config, faults)
    batched = max_batch_size > 0
    faults.raise_any()
    report = ConversionReport(options.drop)
    report.change("backend = npu_ge", f"backend = {NAME}: `ge-runtime backend` installs it")
    text = _completed(text, config, graph, report, batched=batched)
    config = {"name": name, **parse(text)}
    inputs, outputs = (_tensors(config, section, faults) for section in ("input", "output"))
    instances = read_instances(config, faults)
    faults.raise_any()
    given = _texts(config, report)
    merged = with_command_line(given, options.settings, report)
    kept = _converted(merged, instances, options, report)
    sizes: dict[str, str] = {}
    if inputs and outputs:
        names = dict(options.axes)
        if graph is not None:
            names.update(with_symbols(names, inputs, outputs, graph, batched=batched))
        sizes = gear_parameters(
            inputs,
            outputs,
            _shape_options(merged, report),
            report,
            batched=batched,
            names=names,
            limits=options.limits,
        )
        _add_batch_gears(sizes, max_batch_size, config, report)
        _report_sizes_without_gears(sizes, report)
    else:
        why = "npu_ge reads them from the ONNX file, which is missing here"
        report.require("input and output", "not both present", why, "declare them with their dims")
    if options.strategy:
        kept["early_answers"] = early_answers(options.strategy)
        report.change(f"early_answers = {kept['early_answers']}", f"--strategy {options.strategy}")
    values = {"backend": quoted(NAME)}
    text += _add_batching(values, text, config, options.strategy, max_batch_size, report)
    new = edit_config(
        text,
        values=values,
        without=lambda field: field == _INSTANCES and instances > 1,
        keep=lambda key: key in kept and kept[key] == given.get(key),
        more={**{key: value for key, value in kept.items() if given.get(key) != value}, **sizes},
    )
    return Conversion(new, report, _problems(name, new, report))


def _add_batching(
    values: dict[str, str],
    text: str,
    config: Mapping[str, object],
    strategy: str,
    max_batch_size: int,
    report: ConversionReport,
) -> str:
    """Add the dynamic batching of a strategy to `values`, the new values of fields.

    Returns:
        The lines to append to `text`: an empty field if `text` lacks the field, else "".
    """
    if strategy and max_batch_size > 1 and "sequence_batching" not in config:
        fields = batching_fields(strategy, max_batch_size)
        values[_BATCHING] = edit_message(text, _BATCHING, without=BATCHING_FIELDS, more=fields)
        report.change(f"{_BATCHING} {{ {' '.join(fields)} }}", f"--strategy {strategy}")
        if _BATCHING not in config:
            return f"{_newline(text)}{_BATCHING} {{ }}\n"
    elif _BATCHING in config:
        report.keep(_BATCHING, _batching_note(config))
    return ""


def _newline(text: str) -> str:
    """Return the line end that `text` lacks at its end, if any."""
    return "" if text.endswith("\n") else "\n"


def _completed(
    text: str,
    config: Mapping[str, object],
    graph: Signature | None,
    report: ConversionReport,
    *,
    batched: bool,
) -> str:
    """Add the sections `input` and `output` of the graph if the configuration lacks them."""
    if graph is None:
        return text
    try:
        sections = missing_sections(config, graph, batched=batched)
    except ArtifactFault as fault:
        report.require("input and output", "not both present", str(fault), "declare them")
        return text
    for section, lines in sections.items():
        report.change(section, "not declared: read from the ONNX file, as npu_ge does")
        text += f"{_newline(text)}{lines}"
    return text


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


def _converted(
    merged: Mapping[str, str], instances: int, options: ConvertOptions, report: ConversionReport
) -> dict[str, str]:
    """Return the parameters for ge_runtime, without those that define sizes."""
    kept = convert_parameters(merged, report)
    _set_cards(kept, options, report)
    _set_engines(kept, instances, merged, report)
    _set_precision(kept, merged, report)
    return kept


def _set_cards(kept: dict[str, str], options: ConvertOptions, report: ConversionReport) -> None:
    if options.device_ids is not None and "device_ids" in kept:
        why = "there is a device_ids already"
        report.require("--device-ids", options.device_ids, why, "change it there")
    if options.device_ids is not None:
        kept["device_ids"] = options.device_ids
    if "device_ids" in kept:
        return
    why = "npu_ge then uses every visible card; ge_runtime needs a list"
    report.require("device_ids", "not set", why, "use --device-ids, e.g. 0 or 0,1")


def _set_engines(
    kept: dict[str, str], instances: int, merged: Mapping[str, str], report: ConversionReport
) -> None:
    """Replace npu_ge's instances, which are threads, by engines of one process."""
    if instances == 1:
        return
    what = f"{_INSTANCES} = {instances} instances"
    blocks = "device_exec_blocks"
    if blocks in kept:
        report.change(what, f"one process; {blocks} = {kept[blocks]} engines for each card")
        return
    # npu_ge computes its default this way, in CalculateDeviceExecBlock.
    split = merged.get("instance_exec_blocks", "1")
    wanted = instances * (int(split) if split.isdecimal() else 1)
    cards = len(split_names(kept.get("device_ids", "0")))
    count = -(-wanted // cards)
    kept[blocks] = str(min(count, _MOST_BLOCKS))
    why = f"one process; {blocks} = {kept[blocks]}, the engines for each card"
    advice = f" (npu_ge: {count}; its manual advises at most {_MOST_BLOCKS})"
    report.change(what, why + (advice if count > _MOST_BLOCKS else ", as in npu_ge"))


def _set_precision(
    kept: dict[str, str], merged: Mapping[str, str], report: ConversionReport
) -> None:
    """Write the precision that GE chooses by default."""
    if any(key.endswith(("precision_mode", "precision_mode_v2")) for key in (*kept, *merged)):
        return
    kept[f"graph.{PRECISION}"] = "fp16"
    why = "GE's default, which npu_ge used; `origin` would keep the graph's FP32"
    report.change(f"graph.{PRECISION} = fp16", why)


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


def _add_batch_gears(
    sizes: dict[str, str],
    max_batch_size: int,
    config: Mapping[str, object],
    report: ConversionReport,
) -> None:
    """Add gears of rows if npu_ge had none, and report all sizes."""
    new = list(sizes)
    geared = {axis for key in sizes for axis in key.removeprefix("gears.").split(",")}
    if max_batch_size > 1 and ROWS not in geared:
        batching = config.get(_BATCHING)
        preferred = batching.get("preferred_batch_size") if isinstance(batching, Mapping) else None
        gears = batch_gears(max_batch_size, preferred if isinstance(preferred, list) else [])
        sizes[f"gears.{ROWS}"] = gears
        why = "npu_ge compiled a dynamic graph; an .om has gears, and batches are padded to them"
        report.change(f"gears.{ROWS} = {gears}", why)
    for key in new:
        report.change(f"{key} = {sizes[key]}", "from dims of -1 and the gears")


def _report_sizes_without_gears(sizes: Mapping[str, str], report: ConversionReport) -> None:
    """Report axes that npu_ge executes at any size, but an .om only at the largest size."""
    gears, limits = (
        {key.removeprefix(prefix): value for key, value in sizes.items() if key.startswith(prefix)}
        for prefix in ("gears.", "limit.")
    )
    geared = {axis for axes in gears for axis in axes.split(",")}
    free = [f"{a} {size}" for a, size in limits.items() if int(size) > 1 and a not in geared]
    if free:
        why = "without gears an .om has only this size, to which requests are padded; "
        report.change(", ".join(free), f"{why}`ge-runtime gears` chooses gears")


def _batching_note(config: Mapping[str, object]) -> str:
    batching = config.get(_BATCHING)
    if isinstance(batching, Mapping) and "max_queue_delay_microseconds" in batching:
        return "unchanged"
    return "npu_ge merges no requests without max_queue_delay_microseconds; ge_runtime does"


def _problems(name: str, text: str, report: ConversionReport) -> list[str]:
    """Return the known problems, or else the errors of loading the new configuration `text`.

    Known problems would cause further errors.
    """
    problems = list(report.problems)
    if not problems:
        try:
            RuntimeConfig.parse({"name": name, **parse(text)}, cores=1)
        except ConfigFault as fault:
            problems += fault.faults
    unused = sorted({*report.dropped} - report.used)
    return problems + [f"--drop {each}: found nothing to drop" for each in unused]
