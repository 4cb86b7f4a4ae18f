"""What `ge.inputShape` and `ge.dynamicDims` say of a model's gears, dim by dim.

`ge.inputShape` is "ids:-1,-1;mask:-1,-1", with the batch dimension; `ge.dynamicDims` is
"1,64,1,64;8,128,8,128": a group for each gear, a value for each -1, in that order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.convert.problems import Told
from ge_runtime.specs import UNKNOWN

SHAPE: Final = "ge.inputShape"
DIMS: Final = "ge.dynamicDims"
_FREE: Final = -1


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as config.pbtxt declares it, without the batch dimension."""

    name: str
    dims: tuple[int, ...]
    """UNKNOWN where the size is open."""


@dataclass(frozen=True, slots=True)
class Column:
    """A dim of an input that config.pbtxt leaves open, or the rows: its size in each gear."""

    tensor: str
    place: int
    """Among the tensor's dims; -1 for the rows."""
    sizes: tuple[int, ...]


def read_columns(
    inputs: Sequence[Tensor],
    options: Mapping[str, tuple[str, str]],
    told: Told,
    *,
    batched: bool,
) -> list[Column]:
    """What the options say of rows and open dims; nothing, if they cannot be understood."""
    if SHAPE not in options:
        if DIMS in options:
            parameter, value = options[DIMS]
            told.demand(parameter, value, f"there is no {SHAPE} beside it", f"write graph.{SHAPE}")
        return []
    parameter, text = options[SHAPE]
    shapes = _shapes(text)
    wanted = {tensor.name: len(tensor.dims) + batched for tensor in inputs}
    if shapes is None or {name: len(shape) for name, shape in shapes.items()} != wanted:
        ranks = "; ".join(f"{name}: {rank} dims" for name, rank in wanted.items())
        told.demand(parameter, text, "it is not a shape of every input", f"write {ranks}")
        return []
    count = sum(shape.count(_FREE) for shape in shapes.values())
    gears = _groups(options.get(DIMS, ("", ""))[1], count)
    if gears is None:
        parameter, value = options.get(DIMS, (f"graph.{DIMS}", "nothing"))
        why = f"{SHAPE} has {count} open dim(s), and each gear lists one value for each"
        told.demand(parameter, value, why, "write e.g. 1,64;8,64 for two gears of two")
        return []
    values = iter(zip(*gears, strict=True))
    declared = {tensor.name: tensor.dims for tensor in inputs}
    columns = []
    for name, shape in shapes.items():  # gears list their values in this order
        for index, size in enumerate(shape):
            place = index - batched
            sizes = next(values) if size == _FREE else (size,) * len(gears)
            dim = UNKNOWN if place < 0 else declared[name][place]
            if dim == UNKNOWN:
                columns.append(Column(name, place, sizes))
            elif set(sizes) != {dim}:
                why = f"config.pbtxt says {dim} for that dim of '{name}'"
                told.demand(parameter, text, why, "make both say the same")
    rows = {each.sizes for each in columns if each.place < 0}
    if len(rows) > 1:
        told.demand(parameter, text, "inputs differ in their rows", "give all the same")
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
