"""npu_ge's sizes of a model, made into axes, limits and gears.

`ge.inputShape` is "ids:-1,-1;mask:-1,-1", with the batch dimension; `ge.dynamicDims` is
"1,64,1,64;8,128,8,128": a group for each gear, a value for each -1, in that order.

Every request that npu_ge serves has the sizes of a gear, so sizes that are equal in all gears are
one axis: dims at the same place of several inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.convert.npu_ge_parameters import DIMS, SHAPE, ConversionReport
from ge_runtime.specs import ROWS, UNKNOWN

_FREE: Final = -1


@dataclass(frozen=True, slots=True)
class DeclaredDims:
    """An input or output as config.pbtxt declares it, without the batch dimension."""

    name: str
    dims: tuple[int, ...]
    """UNKNOWN where the size is open."""


@dataclass(frozen=True, slots=True)
class OpenDim:
    """A dim of an input that config.pbtxt leaves open, or the rows: its size in each gear."""

    tensor: str
    place: int
    """Among the tensor's dims; -1 for the rows."""
    sizes: tuple[int, ...]


def read_open_dims(
    inputs: Sequence[DeclaredDims],
    options: Mapping[str, tuple[str, str]],
    report: ConversionReport,
    *,
    batched: bool,
) -> list[OpenDim]:
    """What the options say of rows and open dims; nothing, if they cannot be understood."""
    if SHAPE not in options:
        if DIMS in options:
            parameter, value = options[DIMS]
            report.require(
                parameter, value, f"there is no {SHAPE} beside it", f"write graph.{SHAPE}"
            )
        return []
    parameter, text = options[SHAPE]
    shapes = _shapes(text)
    wanted = {tensor.name: len(tensor.dims) + batched for tensor in inputs}
    if shapes is None or {name: len(shape) for name, shape in shapes.items()} != wanted:
        ranks = "; ".join(f"{name}: {rank} dims" for name, rank in wanted.items())
        report.require(parameter, text, "it is not a shape of every input", f"write {ranks}")
        return []
    count = sum(shape.count(_FREE) for shape in shapes.values())
    gears = _groups(options.get(DIMS, ("", ""))[1], count)
    if gears is None:
        parameter, value = options.get(DIMS, (f"graph.{DIMS}", "nothing"))
        why = f"{SHAPE} has {count} open dim(s), and each gear lists one value for each"
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
                why = f"config.pbtxt says {dim} for that dim of '{name}'"
                report.require(parameter, text, why, "make both say the same")
    rows = {each.sizes for each in columns if each.place < 0}
    if len(rows) > 1:
        report.require(parameter, text, "inputs differ in their rows", "give all the same")
        return []
    return columns


def _shapes(text: str) -> dict[str, tuple[int, ...]] | None:
    """The shapes that the text writes, or None if it is not in that form."""
    shapes = {}
    for part in filter(None, text.split(";")):
        # Names of ONNX files may hold colons, sizes do not.
        name, colon, sizes = part.rpartition(":")
        words = [word.strip() for word in sizes.split(",")] if sizes.strip() else []
        if not colon or not all(re.fullmatch(r"-1|[1-9]\d*", word) for word in words):
            return None
        shapes[name.strip()] = tuple(map(int, words))
    return shapes


def _groups(text: str, count: int) -> list[tuple[int, ...]] | None:
    """The gears that the text lists, of `count` values each, or None if it does not."""
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
    """The parameters `axes`, `limit` and `gears` for all sizes that config.pbtxt leaves open.

    options: option of GE: its parameter and value. batched: there is a batch dimension. names:
    tensor: what the user calls its open dims. limits: axis: its largest size, as the user says.
    """
    columns = read_open_dims(inputs, options, report, batched=batched)
    axes = _axes(inputs, columns, names, report)
    parameters: dict[str, str] = {}
    for tensor in inputs:
        if own := [axes[tensor.name, place] for place in _open(tensor)]:
            parameters[f"axes.{tensor.name}"] = ",".join(own)
    tables = _tables(columns, axes, report)
    _check_user_names([*inputs, *outputs], axes, names, limits, report)
    for axis in dict.fromkeys(axis for axis in axes.values() if axis != ROWS):
        largest = limits.get(axis, max(tables.get(axis, (0,))))
        if largest < 1:
            why = "npu_ge compiles for any size; ge_runtime plans memory for the largest"
            report.require(f"axis '{axis}'", "open", why, f"say --limit {axis}=SIZE")
        parameters[f"limit.{axis}"] = str(max(1, largest))
    parameters |= _gears(tables)
    for tensor in outputs:
        if len(_open(tensor)) and tensor.name in names:
            parameters[f"axes.{tensor.name}"] = ",".join(names[tensor.name])
        elif len(_open(tensor)) and batched:
            known = ", ".join(axis for axis in axes.values() if axis != ROWS) or "none"
            why = "npu_ge reads from the names of the ONNX file's dims how large it is"
            cure = f"say --axes {tensor.name}=AXIS,... with axes ({known}) or relations of them"
            report.require(f"output '{tensor.name}'", f"{list(tensor.dims)}", why, cure)
    return parameters


def _open(tensor: DeclaredDims) -> list[int]:
    """The places of the dims that are open."""
    return [place for place, dim in enumerate(tensor.dims) if dim == UNKNOWN]


def _axes(
    inputs: Sequence[DeclaredDims],
    columns: Sequence[OpenDim],
    names: Mapping[str, Sequence[str]],
    report: ConversionReport,
) -> dict[tuple[str, int], str]:
    """Tensor and place of each open dim, and of rows that have gears: the name of its axis."""
    axes = {(each.tensor, each.place): ROWS for each in columns if each.place < 0}
    for tensor in inputs:
        own, places = names.get(tensor.name, ()), _open(tensor)
        if own and len(own) != len(places):
            why = f"its dims {list(tensor.dims)} have {len(places)} open"
            cure = "name each of them, in order"
            report.require(f"--axes {tensor.name}", ",".join(own), why, cure)
        elif own:
            axes |= {(tensor.name, place): name for place, name in zip(places, own, strict=True)}
    # What the user names, other dims of the same sizes are called, too.
    sizes = {(each.tensor, each.place): (each.place, each.sizes) for each in columns}
    same: dict[tuple[int, tuple[int, ...]], str] = {}
    for dim, name in axes.items():
        if dim in sizes:
            same.setdefault(sizes[dim], name)
    for dim in ((tensor.name, place) for tensor in inputs for place in _open(tensor)):
        if dim not in axes:
            made = _made_of(*dim)
            axes[dim] = same.setdefault(sizes[dim], made) if dim in sizes else made
    return axes


def _made_of(tensor: str, place: int) -> str:
    """A name for an axis that nobody has named."""
    made = re.sub(r"\W", "_", f"{tensor}_{place}", flags=re.ASCII)
    return made if made[0].isalpha() else f"_{made}"


def _tables(
    columns: Sequence[OpenDim], axes: Mapping[tuple[str, int], str], report: ConversionReport
) -> dict[str, tuple[int, ...]]:
    """Axis: its size in each gear."""
    tables: dict[str, tuple[int, ...]] = {}
    for column in columns:
        axis = axes[column.tensor, column.place]
        if tables.setdefault(axis, column.sizes) != column.sizes:
            why = f"'{column.tensor}' has other sizes in the gears than an input before it"
            report.require("--axes", axis, why, "give it a name of its own")
    return tables


def _check_user_names(
    tensors: Sequence[DeclaredDims],
    axes: Mapping[tuple[str, int], str],
    names: Mapping[str, Sequence[str]],
    limits: Mapping[str, int],
    report: ConversionReport,
) -> None:
    """Problems with what the user says of tensors and axes that there are not."""
    known = {tensor.name for tensor in tensors if _open(tensor)}
    for name in sorted(names.keys() - known):
        why = "no such tensor has an open dim"
        report.require("--axes", name, why, f"name one of: {', '.join(sorted(known)) or 'none'}")
    there = {*axes.values()} - {ROWS}
    for axis in sorted(limits.keys() - there):
        report.require(
            "--limit",
            axis,
            "there is no such axis",
            f"name one of: {', '.join(sorted(there)) or 'none'}",
        )


def _gears(tables: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The parameters of all axes: each has its own where all combinations are gears."""
    axes = sorted(tables, key=lambda axis: axis != ROWS)
    rows = set(zip(*(tables[axis] for axis in axes), strict=True))
    parameters = {}
    joint = list(axes)
    for axis in axes:
        place = joint.index(axis)
        own = {row[place] for row in rows}
        rest = {row[:place] + row[place + 1 :] for row in rows}
        # As many as all combinations of the two, so it is all of them.
        if len(rows) == len(own) * len(rest) and len(joint) > 1:
            parameters[f"gears.{axis}"] = ", ".join(map(str, sorted(own)))
            rows, joint = rest, [*joint[:place], *joint[place + 1 :]]
    if joint:
        table = ", ".join("x".join(map(str, row)) for row in sorted(rows))
        parameters[f"gears.{','.join(joint)}"] = table
    return parameters
