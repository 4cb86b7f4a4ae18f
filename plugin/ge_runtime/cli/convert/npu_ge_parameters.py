"""Convert npu_ge's parameters: keep, drop or refuse them, or derive axes, limits and gears.

`ge.inputShape` is "ids:-1,-1;mask:-1,-1", with the batch dimension; `ge.dynamicDims` is
"1,64,1,64;8,128,8,128": a group for each gear, with a value for each -1 in the order of the shapes.

Every request to npu_ge has the sizes of a gear. Therefore dims at the same position of several
inputs become one axis if their sizes are equal in all gears.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.convert.report import ConversionReport
from ge_runtime.config import ATC_FLAGS
from ge_runtime.specs import ROWS, UNKNOWN

SHAPE: Final = "ge.inputShape"
DIMS: Final = "ge.dynamicDims"
SHAPES: Final = (SHAPE, DIMS, "ge.dynamicNodeType")
"""Options of GE for the sizes that a graph is compiled for."""

PRECISION: Final = "ge.exec.precision_mode_v2"
_PRECISION_V1: Final = "ge.exec.precision_mode"
_MODES: Final = {
    "force_fp16": "fp16",
    "must_keep_origin_dtype": "origin",
    "force_fp32": "cube_fp16in_fp32out",
    "cube_fp16in_fp32out": "cube_fp16in_fp32out",
    "allow_mix_precision": "mixed_float16",
    "allow_mix_precision_fp16": "mixed_float16",
    "allow_mix_precision_bf16": "mixed_bfloat16",
}
"""For modes of precision_mode, the equivalent modes of precision_mode_v2 by CANN's documents."""

_OFF: Final = ("0", "false", "off", "")
_DIAGNOSTICS: Final = {
    "profiling": "the parameter `profile` records executions with msprof",
    "dump_graph": "dump the graph during compilation: DUMP_GE_GRAPH=2 with atc",
    "dump_data": "the parameter `dump` writes the outputs of operators",
}
_MANAGED: Final = {
    "ge.constLifecycle": "weights exist once for each device",
    "ge.exec.reuseZeroCopyMemory": "inputs and outputs are planned separately",
    "ge.exec.staticMemoryPolicy": "models of a device share one workspace",
    "ge.featureBaseRefreshable": "workspace is planned at load and never moves",
    "ge.graph_compiler_cache_dir": "models are compiled before they are served",
    "ge.graph_key": "models are compiled before they are served",
}
"""Options that ge_runtime does not need, with the reason."""
_REFUSED: Final = {
    "ge.exec.deviceId": ("cards are listed in device_ids", "list the card there"),
    "ge.session_device_id": ("cards are listed in device_ids", "list the card there"),
    "ge.socVersion": ("a model is compiled before it is served", "pass it to atc: --soc_version"),
    "ge.graphMemoryMaxSize": (
        "memory is planned from the model",
        "limit the workspace: parameter workspace_pool_mib",
    ),
    "ge.variableMemoryMaxSize": ("memory is planned from the model", "nothing replaces it"),
    "ge.compileHybridMode": (
        "a request larger than every gear is refused",
        "add a gear for the largest request",
    ),
}


def convert_parameters(parameters: Mapping[str, str], report: ConversionReport) -> dict[str, str]:
    """Return the parameters to keep, with ge_runtime's values; report all others."""
    kept: dict[str, str] = {}
    for name, value in parameters.items():
        if name.isupper() or name in ("device_ids", "device_exec_blocks"):
            kept[name] = value
            report.keep(f"{name} = {value}", "the same in ge_runtime")
        elif name == "static_model":
            kept[name] = "0" if value.lower() in _OFF else "1"
            report.keep(f"{name} = {value}", "every axis has gears, or one size")
        elif name == "instance_exec_blocks":
            why = "a batch is divided by gears, not into equal parts; npu_ge mixed up the rows"
            report.drop(name, value, "one engine executes a batch" if value == "1" else why)
        elif name in _DIAGNOSTICS:
            off = value.lower() in _OFF
            report.drop(name, value, "it is off" if off else _DIAGNOSTICS[name])
        else:
            family, _, option = name.partition(".")
            if family in ("graph", "session") and option:
                kept |= _option(name, f"ge.{option.removeprefix('ge.')}", value, report)
            elif family == "ge" and option:
                why = "npu_ge reads it only from --backend-config, and ignored it here; "
                report.drop(name, value, f"{why}--backend-config=npu_ge,{name}=... applies it")
            elif family == "global":
                report.drop(name, value, "npu_ge never passed it on")
            else:
                report.drop(name, value, "npu_ge has no such parameter, and ignored it")
    return kept


def _option(name: str, option: str, value: str, report: ConversionReport) -> dict[str, str]:
    """Return the parameter if it is kept. `name` is from config.pbtxt, `option` is GE's name."""
    family = name.partition(".")[0]
    if option in SHAPES:
        report.change(f"{name} = {value}", "axes, limit and gears, below")
    elif option == "ge.externalWeight" and value != "0":
        report.refuse(name, value, "weights are loaded from the .om only")
    elif option in ATC_FLAGS:
        report.keep(f"{name} = {value}", f"`ge-runtime build` passes {ATC_FLAGS[option]}")
        return {f"{family}.{option}": value}
    elif option == _PRECISION_V1 and value in _MODES:
        mode = f"{family}.{PRECISION}"
        report.change(f"{name} = {value}", f"{mode} = {_MODES[value]}, the same mode")
        return {mode: _MODES[value]}
    elif option == _PRECISION_V1:
        why = "precision_mode_v2 of ATC has no equal mode"
        report.refuse(name, value, why, f"use {PRECISION} with fp16, origin or mixed_float16")
    elif option in _MANAGED:
        report.drop(name, value, _MANAGED[option])
    elif option == "ge.graphRunMode" and value == "0":
        report.drop(name, value, "ge_runtime only runs inference")
    elif option == "ge.graphRunMode":
        report.refuse(name, value, "ge_runtime does not train")
    elif option in _REFUSED:
        report.refuse(name, value, *_REFUSED[option])
    else:
        why = "ge_runtime compiles with ATC, and has no flag for this option"
        report.refuse(name, value, why, "compile model.om yourself with a flag of `atc --help`")
    return {}


def with_command_line(
    parameters: Mapping[str, str], settings: Mapping[str, str], report: ConversionReport
) -> dict[str, str]:
    """Return the parameters of config.pbtxt and of the server's command line.

    config.pbtxt takes precedence, as in npu_ge. In npu_ge, `ge.<option>` on the command line
    applies to all graphs. `session.` and `graph.` options apply to their session or graph only.

    Args:
        parameters: The parameters of config.pbtxt.
        settings: The VALUE of each --backend-config=npu_ge,KEY=VALUE, by KEY.
        report: Receives settings that have no effect.
    """
    merged = {**settings, **parameters}
    for name in [each for each in settings if each.startswith("ge.")]:
        del merged[name]  # npu_ge also ignores it in config.pbtxt
        levels = [level for level in (f"graph.{name}", f"session.{name}") if level in merged]
        if levels:
            report.drop(f"--backend-config {name}", settings[name], f"{levels[0]} replaces it")
        else:
            merged[f"graph.{name}"] = settings[name]
    return merged


_FREE: Final = -1


@dataclass(frozen=True, slots=True)
class DeclaredDims:
    """An input or output as config.pbtxt declares it, without the batch dimension."""

    name: str
    dims: tuple[int, ...]
    """Sizes; UNKNOWN for a variable dim."""


@dataclass(frozen=True, slots=True)
class OpenDim:
    """A variable dim of an input, or its rows."""

    tensor: str
    place: int
    """Index in the tensor's dims; -1 for the rows."""
    sizes: tuple[int, ...]
    """Size in each gear."""


def batch_gears(max_batch_size: int, preferred: Sequence[int]) -> str:
    """Return gears for a batch of any size: 1, 2, 4, ..., the largest, and preferred sizes."""
    doubled = [1 << power for power in range(max_batch_size.bit_length())]
    sizes = {*doubled, *preferred, max_batch_size}
    return ", ".join(str(size) for size in sorted(sizes) if size <= max_batch_size)


def read_open_dims(
    inputs: Sequence[DeclaredDims],
    options: Mapping[str, tuple[str, str]],
    report: ConversionReport,
    *,
    batched: bool,
) -> list[OpenDim]:
    """Return the rows and variable dims in GE's options; empty if the options are invalid."""
    if SHAPE not in options:
        if DIMS in options:
            parameter, value = options[DIMS]
            report.require(parameter, value, f"{SHAPE} is not set", f"add graph.{SHAPE}")
        return []
    parameter, text = options[SHAPE]
    shapes = _shapes(text)
    ranks = {tensor.name: len(tensor.dims) + batched for tensor in inputs}
    if shapes is None or {name: len(shape) for name, shape in shapes.items()} != ranks:
        expected = "; ".join(f"{name}: {rank} dims" for name, rank in ranks.items())
        report.require(parameter, text, "expected a shape of every input", f"write {expected}")
        return []
    count = sum(shape.count(_FREE) for shape in shapes.values())
    gears = _groups(options.get(DIMS, ("", ""))[1], count)
    if gears is None:
        parameter, value = options.get(DIMS, (f"graph.{DIMS}", "not set"))
        why = f"{SHAPE} has {count} dim(s) of -1, expected a value for each in every gear"
        report.require(parameter, value, why, "write e.g. 1,64;8,64 for two gears of two")
        return []
    values = iter(zip(*gears, strict=True))  # one for each -1: its size in every gear
    declared = {tensor.name: tensor.dims for tensor in inputs}
    columns = []
    for name, shape in shapes.items():  # gears list their values in this order
        for index, size in enumerate(shape):
            place = index - batched
            sizes = next(values) if size == _FREE else (size,) * len(gears)
            dim = UNKNOWN if place < 0 else declared[name][place]
            if dim == UNKNOWN:
                columns.append(OpenDim(name, place, sizes))
            elif set(sizes) != {dim}:
                why = f"config.pbtxt has {dim} for that dim of '{name}'"
                report.require(parameter, text, why, "make both equal")
    rows = {each.sizes for each in columns if each.place < 0}
    if len(rows) > 1:
        report.require(parameter, text, "inputs have different numbers of rows", "make them equal")
        return []
    return columns


def _shapes(text: str) -> dict[str, tuple[int, ...]] | None:
    """Parse ge.inputShape; None if it is malformed."""
    shapes = {}
    for part in filter(None, text.split(";")):
        # Tensor names may contain colons.
        name, colon, sizes = part.rpartition(":")
        words = [word.strip() for word in sizes.split(",")] if sizes.strip() else []
        if not colon or not all(re.fullmatch(r"-1|[1-9]\d*", word) for word in words):
            return None
        shapes[name.strip()] = tuple(map(int, words))
    return shapes


def _groups(text: str, count: int) -> list[tuple[int, ...]] | None:
    """Parse ge.dynamicDims with `count` values in each gear; None if it is malformed."""
    groups = [[word.strip() for word in group.split(",")] for group in text.split(";") if group]
    if not groups:
        return None if count else [()]
    if not all(len(group) == count and all(map(_is_size, group)) for group in groups):
        return None
    return list(dict.fromkeys(tuple(map(int, group)) for group in groups))


def _is_size(word: str) -> bool:
    return word.isdecimal() and int(word) > 0


def gear_parameters(
    inputs: Sequence[DeclaredDims],
    outputs: Sequence[DeclaredDims],
    options: Mapping[str, tuple[str, str]],
    report: ConversionReport,
    *,
    batched: bool,
    names: Mapping[str, Sequence[str]],
    limits: Mapping[str, int],
) -> dict[str, str]:
    """Return the parameters `axes`, `limit` and `gears` for all variable sizes.

    Args:
        inputs: The inputs that config.pbtxt declares.
        outputs: The outputs that config.pbtxt declares.
        options: The parameter and the value of each option of GE, by option.
        report: Receives the problems.
        batched: True if the model has a batch dimension.
        names: The user's names for the -1 dims of tensors, by tensor.
        limits: The user's largest sizes, by axis.
    """
    columns = read_open_dims(inputs, options, report, batched=batched)
    axes = _axes(inputs, columns, names, report)
    parameters: dict[str, str] = {}
    for tensor in inputs:
        if own := [axes[tensor.name, place] for place in open_places(tensor)]:
            parameters[f"axes.{tensor.name}"] = ",".join(own)
    tables = _tables(columns, axes, report)
    _check_user_names([*inputs, *outputs], axes, names, limits, report)
    for axis in dict.fromkeys(axis for axis in axes.values() if axis != ROWS):
        largest = limits.get(axis, max(tables.get(axis, (0,))))
        if largest < 1:
            why = "npu_ge compiles for any size; ge_runtime plans memory for the largest"
            report.require(f"axis '{axis}'", "no limit", why, f"use --limit {axis}=SIZE")
        parameters[f"limit.{axis}"] = str(max(1, largest))
    parameters |= _gears(tables)
    for tensor in outputs:
        if len(open_places(tensor)) and tensor.name in names:
            parameters[f"axes.{tensor.name}"] = ",".join(names[tensor.name])
        elif len(open_places(tensor)) and batched:
            known = ", ".join(axis for axis in axes.values() if axis != ROWS) or "none"
            why = "npu_ge derives its size from the dim names in the ONNX file"
            cure = f"use --axes {tensor.name}=AXIS,... with axes ({known}) or relations of them"
            report.require(f"output '{tensor.name}'", f"{list(tensor.dims)}", why, cure)
    return parameters


def open_places(tensor: DeclaredDims) -> list[int]:
    """Return the indices of a tensor's variable dims."""
    return [place for place, dim in enumerate(tensor.dims) if dim == UNKNOWN]


def _axes(
    inputs: Sequence[DeclaredDims],
    columns: Sequence[OpenDim],
    names: Mapping[str, Sequence[str]],
    report: ConversionReport,
) -> dict[tuple[str, int], str]:
    """Return the axis of each variable dim, and of rows that have gears, by tensor and index."""
    axes = {(each.tensor, each.place): ROWS for each in columns if each.place < 0}
    for tensor in inputs:
        own, places = names.get(tensor.name, ()), open_places(tensor)
        if own and len(own) != len(places):
            why = f"dims {list(tensor.dims)} contain {len(places)} -1"
            cure = "give one name for each, in order"
            report.require(f"--axes {tensor.name}", ",".join(own), why, cure)
        elif own:
            axes |= {(tensor.name, place): name for place, name in zip(places, own, strict=True)}
    # A name from the user also applies to other dims with the same sizes.
    sizes = {(each.tensor, each.place): (each.place, each.sizes) for each in columns}
    same: dict[tuple[int, tuple[int, ...]], str] = {}
    for dim, name in axes.items():
        if dim in sizes:
            same.setdefault(sizes[dim], name)
    for dim in ((tensor.name, place) for tensor in inputs for place in open_places(tensor)):
        if dim not in axes:
            name = _default_name(*dim)
            axes[dim] = same.setdefault(sizes[dim], name) if dim in sizes else name
    return axes


def _default_name(tensor: str, place: int) -> str:
    """Return the axis name for a dim that the user gives no name."""
    name = re.sub(r"\W", "_", f"{tensor}_{place}", flags=re.ASCII)
    return name if name[0].isalpha() else f"_{name}"


def _tables(
    columns: Sequence[OpenDim], axes: Mapping[tuple[str, int], str], report: ConversionReport
) -> dict[str, tuple[int, ...]]:
    """Return the size of each axis in every gear."""
    tables: dict[str, tuple[int, ...]] = {}
    for column in columns:
        axis = axes[column.tensor, column.place]
        if tables.setdefault(axis, column.sizes) != column.sizes:
            why = f"'{column.tensor}' has other sizes in the gears than an earlier input"
            report.require("--axes", axis, why, "use different names")
    return tables


def _check_user_names(
    tensors: Sequence[DeclaredDims],
    axes: Mapping[tuple[str, int], str],
    names: Mapping[str, Sequence[str]],
    limits: Mapping[str, int],
    report: ConversionReport,
) -> None:
    """Report tensors and axes in the user's options that do not exist."""
    known = {tensor.name for tensor in tensors if open_places(tensor)}
    for name in sorted(names.keys() - known):
        cure = f"use one of: {', '.join(sorted(known)) or 'none'}"
        report.require("--axes", name, "no tensor of this name has a -1", cure)
    present = {*axes.values()} - {ROWS}
    for axis in sorted(limits.keys() - present):
        cure = f"use one of: {', '.join(sorted(present)) or 'none'}"
        report.require("--limit", axis, "unknown axis", cure)


def _gears(tables: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the gear parameters; an axis has its own if it is combined with all other sizes."""
    axes = sorted(tables, key=lambda axis: axis != ROWS)
    rows = set(zip(*(tables[axis] for axis in axes), strict=True))
    parameters = {}
    joint = list(axes)
    for axis in axes:
        place = joint.index(axis)
        own = {row[place] for row in rows}
        rest = {row[:place] + row[place + 1 :] for row in rows}
        # The gears are all combinations of this axis with the others.
        if len(rows) == len(own) * len(rest) and len(joint) > 1:
            parameters[f"gears.{axis}"] = ", ".join(map(str, sorted(own)))
            rows, joint = rest, [*joint[:place], *joint[place + 1 :]]
    if joint:
        table = ", ".join("x".join(map(str, row)) for row in sorted(rows))
        parameters[f"gears.{','.join(joint)}"] = table
    return parameters
