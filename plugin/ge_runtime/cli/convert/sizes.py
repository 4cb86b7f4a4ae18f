"""The sizes of a model, in npu_ge's words, made into axes, limits and gears.

Every request that npu_ge serves has the sizes of a gear, so sizes that are equal in all gears are
one axis: dims at the same place of several inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ge_runtime.cli.convert.columns import Column, Tensor, read_columns
from ge_runtime.cli.convert.problems import Told
from ge_runtime.specs import ROWS, UNKNOWN


def sizes_of(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    options: Mapping[str, tuple[str, str]],
    told: Told,
    *,
    batched: bool,
    names: Mapping[str, Sequence[str]],
    limits: Mapping[str, int],
) -> dict[str, str]:
    """The parameters `axes`, `limit` and `gears` for all sizes that config.pbtxt leaves open.

    options: option of GE: its parameter and value. batched: there is a batch dimension. names:
    tensor: what the user calls its open dims. limits: axis: its largest size, as the user says.
    """
    columns = read_columns(inputs, options, told, batched=batched)
    axes = _axes(inputs, columns, names, told)
    parameters: dict[str, str] = {}
    for tensor in inputs:
        if own := [axes[tensor.name, place] for place in _open(tensor)]:
            parameters[f"axes.{tensor.name}"] = ",".join(own)
    tables = _tables(columns, axes, told)
    _check_wishes([*inputs, *outputs], axes, names, limits, told)
    for axis in dict.fromkeys(axis for axis in axes.values() if axis != ROWS):
        largest = limits.get(axis, max(tables.get(axis, (0,))))
        if largest < 1:
            why = "npu_ge compiles for any size; ge_runtime plans memory for the largest"
            told.demand(f"axis '{axis}'", "open", why, f"say --limit {axis}=SIZE")
        parameters[f"limit.{axis}"] = str(max(1, largest))
    parameters |= _gears(tables)
    for tensor in outputs:
        if len(_open(tensor)) and tensor.name in names:
            parameters[f"axes.{tensor.name}"] = ",".join(names[tensor.name])
        elif len(_open(tensor)) and batched:
            known = ", ".join(axis for axis in axes.values() if axis != ROWS) or "none"
            why = "npu_ge reads from the names of the ONNX file's dims how large it is"
            cure = f"say --axes {tensor.name}=AXIS,... with axes ({known}) or relations of them"
            told.demand(f"output '{tensor.name}'", f"{list(tensor.dims)}", why, cure)
    return parameters


def _open(tensor: Tensor) -> list[int]:
    """The places of the dims that are open."""
    return [place for place, dim in enumerate(tensor.dims) if dim == UNKNOWN]


def _axes(
    inputs: Sequence[Tensor],
    columns: Sequence[Column],
    names: Mapping[str, Sequence[str]],
    told: Told,
) -> dict[tuple[str, int], str]:
    """Tensor and place of each open dim, and of rows that have gears: the name of its axis."""
    axes = {(each.tensor, each.place): ROWS for each in columns if each.place < 0}
    for tensor in inputs:
        own, places = names.get(tensor.name, ()), _open(tensor)
        if own and len(own) != len(places):
            why = f"its dims {list(tensor.dims)} have {len(places)} open"
            cure = "name each of them, in order"
            told.demand(f"--axes {tensor.name}", ",".join(own), why, cure)
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
    columns: Sequence[Column], axes: Mapping[tuple[str, int], str], told: Told
) -> dict[str, tuple[int, ...]]:
    """Axis: its size in each gear."""
    tables: dict[str, tuple[int, ...]] = {}
    for column in columns:
        axis = axes[column.tensor, column.place]
        if tables.setdefault(axis, column.sizes) != column.sizes:
            why = f"'{column.tensor}' has other sizes in the gears than an input before it"
            told.demand("--axes", axis, why, "give it a name of its own")
    return tables


def _check_wishes(
    tensors: Sequence[Tensor],
    axes: Mapping[tuple[str, int], str],
    names: Mapping[str, Sequence[str]],
    limits: Mapping[str, int],
    told: Told,
) -> None:
    """Problems with what the user says of tensors and axes that there are not."""
    known = {tensor.name for tensor in tensors if _open(tensor)}
    for name in sorted(names.keys() - known):
        why = "no such tensor has an open dim"
        told.demand("--axes", name, why, f"name one of: {', '.join(sorted(known)) or 'none'}")
    there = {*axes.values()} - {ROWS}
    for axis in sorted(limits.keys() - there):
        told.demand(
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
        if len(rows) == len(own) * len(rest) and len(joint) > 1:
            parameters[f"gears.{axis}"] = ", ".join(map(str, sorted(own)))
            rows, joint = rest, [*joint[:place], *joint[place + 1 :]]
    if joint:
        table = ", ".join("x".join(map(str, row)) for row in sorted(rows))
        parameters[f"gears.{','.join(joint)}"] = table
    return parameters
