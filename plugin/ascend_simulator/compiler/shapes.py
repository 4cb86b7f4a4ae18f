"""The shapes that a compiled model takes: what --input_shape and the three gear flags say together.

Facts and limits: docs of ATC, "dynamic_gear"; GE's list of error codes. Where two codes fit, or the
documents name none, the choice is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ascend_simulator.compiler.faults import CompileFault
from ascend_simulator.compiler.flags import Options, number
from ascend_simulator.compiler.gear_lists import (
    check_count,
    check_places,
    family_of,
    values_of,
)
from ascend_simulator.om import Dims, Family

NO_END: Final = -1
"""The largest value of a dim that has no limit."""

Range: TypeAlias = tuple[int, int]
"""Least and largest value of a dim; a fixed one has both alike."""

_ANY: Final[Range] = (1, NO_END)


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input as the ONNX file has it; a dim that is no number there is None."""

    name: str
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Gear:
    """One set of input shapes, in the order of the inputs, and the values that choose it."""

    values: Dims
    inputs: tuple[Dims, ...]


@dataclass(frozen=True, slots=True)
class InputShapes:
    """All that can be told of a model's shapes before its graph is looked at."""

    family: Family
    ranges: tuple[tuple[Range, ...], ...]
    """Of every dim of every input."""
    gears: tuple[Gear, ...]
    """One without values of a static model; none of a dynamic one."""

    def dims(self, index: int) -> Dims:
        """Of input `index`, -1 where they change."""
        return tuple(low if low == high else -1 for low, high in self.ranges[index])


def input_shapes(options: Options, inputs: Sequence[GraphInput]) -> InputShapes:
    """What the flags make of the graph's inputs. Raises CompileFault."""
    listed = _listed(options.input_shape)
    names = [each.name for each in inputs]
    for name in listed:
        if name not in names:
            raise CompileFault(
                "E10016", f"--input_shape names '{name}'; inputs: {', '.join(names)}"
            )
    ranges = {each.name: _checked(each, listed.get(each.name)) for each in inputs}
    family, text = family_of(options)
    if text is None:
        if all(low == high for dims in ranges.values() for low, high in dims):
            only = Gear((), tuple(_fixed(ranges[name], iter(())) for name in names))
            return InputShapes("static", tuple(ranges.values()), (only,))
        return InputShapes("dynamic", tuple(ranges.values()), ())
    for name in names:
        if name not in listed and any(each == _ANY for each in ranges[name]):
            raise CompileFault("E11005", f"with gears --input_shape must list input '{name}' too")
    order = [name for name in listed if any(each == _ANY for each in ranges[name])]
    if any(low != high and (low, high) != _ANY for dims in ranges.values() for low, high in dims):
        raise CompileFault("E10040", "--input_shape has a range '~', which gears exclude")
    values = values_of(family, text)
    axes = {name: _places(ranges[name]) for name in order}
    check_places(family, options, axes, len(values[0]))
    check_count(family, values, options.soc)
    count = sum(map(len, axes.values()))
    gears = []
    for gear in values:
        spread = iter(gear * (count // len(gear)))  # a batch size for each input; dims once
        shapes = {name: _fixed(ranges[name], spread) for name in order}
        fixed = {name: _fixed(ranges[name], iter(())) for name in names if name not in shapes}
        gears.append(Gear(gear, tuple((shapes | fixed)[name] for name in names)))
    return InputShapes(family, tuple(ranges.values()), tuple(gears))


def _listed(text: str) -> dict[str, tuple[Range, ...]]:
    """--input_shape by name; "name:" is a scalar."""
    listed: dict[str, tuple[Range, ...]] = {}
    for entry in filter(None, text.split(";")):
        name, colon, dims = entry.rpartition(":")
        name = name.strip()
        if not colon or not name:
            raise CompileFault("E10002", f"--input_shape: found '{entry}', expected name:d,d,d")
        if name in listed:
            raise CompileFault("E10002", f"--input_shape: found '{name}' twice, expected it once")
        listed[name] = tuple(_range(dim, text) for dim in dims.split(",")) if dims else ()
    return listed


def _range(text: str, whole: str) -> Range:
    try:
        low, high = map(number, text.split("~")) if "~" in text else [number(text)] * 2
    except ValueError:
        raise CompileFault("E10002", f"--input_shape={whole}: '{text}' is no number") from None
    if (low, high) == (-1, -1):
        return _ANY
    if low < 1 or (high != NO_END and high < low):
        raise CompileFault("E10011", f"--input_shape={whole}: '{text}' is no positive number")
    return low, high


def _checked(graph: GraphInput, listed: tuple[Range, ...] | None) -> tuple[Range, ...]:
    """The ranges of one input, which the graph's own dims must allow."""
    own = tuple(_ANY if dim is None else (dim, dim) for dim in graph.dims)
    if listed is None:
        return own
    if len(listed) != len(own):
        found = f"--input_shape gives '{graph.name}' {len(listed)} dims, the model has {len(own)}"
        raise CompileFault("E10049", found)
    for (low, high), dim in zip(listed, graph.dims, strict=True):
        if dim is not None and (low, high) != (dim, dim):
            found = f"--input_shape gives '{graph.name}' {low}, where the model has {dim}"
            raise CompileFault("E10050", found)
    return listed


def _places(dims: tuple[Range, ...]) -> list[int]:
    return [axis for axis, each in enumerate(dims) if each == _ANY]


def _fixed(dims: tuple[Range, ...], values: Iterator[int]) -> Dims:
    return tuple(next(values) if each == _ANY else each[0] for each in dims)
