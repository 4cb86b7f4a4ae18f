"""The gears of a graph that GE compiles, as GE's own options write them.

- `graph.ge.inputShape`: the dims of every input, -1 where gears differ: `ids:-1,-1;mask:-1,-1`.
- `graph.ge.dynamicDims`: for each gear a size for each -1, in that order: `1,64,1,64;8,64,8,64`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from ge_runtime.engines.base import GraphTensor, Shapes
from ge_runtime.errors import ArtifactFault

INPUT_SHAPE: Final = "ge.inputShape"
DYNAMIC_DIMS: Final = "ge.dynamicDims"
NODE_TYPE: Final = {"ge.dynamicNodeType": "1"}
"""What goes with gears: inputs are given by the caller, and not by a data set of GE's."""

_FEWEST, _MOST = 2, 100


def shapes_of(
    inputs: Sequence[GraphTensor], options: Mapping[str, str], artifact: str
) -> list[Shapes] | None:
    """The only shapes that the graph executes; None for any. By growing elements.

    Raises ArtifactFault for options that GE would refuse or that do not fit the graph.
    """
    given = [option for option in (INPUT_SHAPE, DYNAMIC_DIMS) if option in options]
    if not given:
        if any(tensor.dims is None or None in tensor.dims for tensor in inputs):
            return None
        return [{tensor.name: _fixed(tensor) for tensor in inputs}]
    if len(given) < 2:
        raise ArtifactFault(
            f"parameter 'graph.{given[0]}': found it alone, expected {INPUT_SHAPE} and "
            f"{DYNAMIC_DIMS} together"
        )
    pattern = _pattern(options[INPUT_SHAPE])
    _check_pattern(pattern, inputs, artifact)
    places = sum(dims.count(-1) for dims in pattern.values())
    gears = _gears(options[DYNAMIC_DIMS], places)
    shapes = [_shapes(pattern, gear) for gear in gears]
    return sorted(shapes, key=_elements)


def _fixed(tensor: GraphTensor) -> tuple[int, ...]:
    return tuple(dim for dim in tensor.dims or () if dim is not None)


def _pattern(text: str) -> dict[str, tuple[int, ...]]:
    pattern: dict[str, tuple[int, ...]] = {}
    for part in text.split(";"):
        name, colon, dims = part.strip().rpartition(":")
        numbers = _numbers(dims)
        sound = colon and name and name not in pattern
        if not sound or numbers is None or min(numbers, default=1) < -1:
            _refuse(INPUT_SHAPE, f"'{part}'", "the name of an input once, a colon and its dims")
        pattern[name] = numbers
    return pattern


def _check_pattern(
    pattern: Mapping[str, tuple[int, ...]], inputs: Sequence[GraphTensor], artifact: str
) -> None:
    names = [tensor.name for tensor in inputs]
    if sorted(pattern) != sorted(names):
        _refuse(INPUT_SHAPE, ", ".join(pattern), f"all inputs of {artifact}: {', '.join(names)}")
    for tensor in inputs:
        dims = pattern[tensor.name]
        fits = tensor.dims is None or (
            len(dims) == len(tensor.dims)
            and all(own in (None, dim) for own, dim in zip(tensor.dims, dims, strict=True))
        )
        if not fits:
            found = f"{list(dims)} for '{tensor.name}'"
            _refuse(INPUT_SHAPE, found, f"what {artifact} has: {tensor}")


def _gears(text: str, places: int) -> list[tuple[int, ...]]:
    gears: list[tuple[int, ...]] = []
    for part in text.split(";"):
        gear = _numbers(part)
        if gear is None or len(gear) != places or min(gear, default=0) < 1 or gear in gears:
            expected = f"{places} positive number(s), one for each -1, and no gear twice"
            _refuse(DYNAMIC_DIMS, f"'{part}'", expected)
        gears.append(gear)
    if not _FEWEST <= len(gears) <= _MOST:
        _refuse(DYNAMIC_DIMS, f"{len(gears)} gear(s)", f"{_FEWEST} to {_MOST}")
    return gears


def _numbers(text: str) -> tuple[int, ...] | None:
    """The numbers between commas, none for a text of nothing; None for other text."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        return None


def _shapes(pattern: Mapping[str, tuple[int, ...]], gear: Sequence[int]) -> Shapes:
    left = iter(gear)
    return {
        name: tuple(next(left) if dim == -1 else dim for dim in dims)
        for name, dims in pattern.items()
    }


def _elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _refuse(option: str, found: str, expected: str) -> NoReturn:
    raise ArtifactFault(f"parameter 'graph.{option}': found {found}, expected {expected}")
