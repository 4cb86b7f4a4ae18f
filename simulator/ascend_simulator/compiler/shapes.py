"""The shapes of a compiled model: --input_shape and the three gear flags combined.

Facts and limits are from ATC's documents ("dynamic_gear") and GE's list of error codes. If two
codes fit, or the documents name none, the choice of the error code is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ascend_simulator.compiler.flags import CompileFault, Options, number
from ascend_simulator.models.om import Dims, Family

NO_END: Final = -1
"""The maximum of an unbounded dim."""

Range: TypeAlias = tuple[int, int]
"""Minimum and maximum of a dim. They are equal for a fixed dim."""

_ANY: Final[Range] = (1, NO_END)

LEAST_GEARS: Final = 2
MOST_GEARS: Final = 100
MOST_GEARS_950: Final = 256
"""The maximum number of gears for chips named Ascend950..."""

_FLAGS: Final[Mapping[Family, str]] = {
    "batch": "--dynamic_batch_size",
    "image": "--dynamic_image_size",
    "dims": "--dynamic_dims",
}
_IMAGE_AXES: Final[Mapping[str, tuple[int, int]]] = {"NCHW": (2, 3)}


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input in the ONNX file. A dim that is not a number is None."""

    name: str
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Gear:
    """One set of input shapes, in the order of the inputs, and the gear values that select it."""

    values: Dims
    inputs: tuple[Dims, ...]


@dataclass(frozen=True, slots=True)
class InputShapes:
    """The shapes of a model's inputs, derived only from the flags and the graph's inputs."""

    family: Family
    ranges: tuple[tuple[Range, ...], ...]
    """The range of every dim of every input."""
    gears: tuple[Gear, ...]
    """One gear without values for a static model; none for a dynamic model."""
    order: tuple[int, ...] = ()
    """Indices of the inputs that --input_shape names, in the order of the flag."""

    def dims(self, index: int) -> Dims:
        """Return the dims of input `index`; a dim that varies is -1."""
        return tuple(low if low == high else -1 for low, high in self.ranges[index])


def input_shapes(options: Options, inputs: Sequence[GraphInput]) -> InputShapes:
    """Apply the flags to the graph's inputs. Raises CompileFault."""
    listed = _listed(options.input_shape)
    names = [each.name for each in inputs]
    for name in listed:
        if name not in names:
            raise CompileFault(
                "E10016",
                f"--input_shape: unknown input '{name}', expected one of {', '.join(names)}",
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
            raise CompileFault(
                "E11005", f"--input_shape: input '{name}' is missing; with gears list all inputs"
            )
    order = [name for name in listed if any(each == _ANY for each in ranges[name])]
    if any(low != high and (low, high) != _ANY for dims in ranges.values() for low, high in dims):
        raise CompileFault("E10040", "--input_shape: a range '~' cannot be combined with gears")
    values = values_of(family, text)
    axes = {name: _places(ranges[name]) for name in order}
    check_places(family, options, axes, len(values[0]))
    check_count(family, values, options.soc)
    count = sum(map(len, axes.values()))
    gears = []
    for gear in values:
        # A gear's batch size applies to all inputs, whereas each value of other gears is used once.
        spread = iter(gear * (count // len(gear)))
        shapes = {name: _fixed(ranges[name], spread) for name in order}
        fixed = {name: _fixed(ranges[name], iter(())) for name in names if name not in shapes}
        gears.append(Gear(gear, tuple((shapes | fixed)[name] for name in names)))
    return InputShapes(
        family, tuple(ranges.values()), tuple(gears), tuple(map(names.index, listed))
    )


def _listed(text: str) -> dict[str, tuple[Range, ...]]:
    """Parse --input_shape into ranges by name; "name:" is a scalar."""
    listed: dict[str, tuple[Range, ...]] = {}
    for entry in filter(None, text.split(";")):
        name, colon, dims = entry.rpartition(":")
        name = name.strip()
        if not colon or not name:
            raise CompileFault("E10002", f"--input_shape: found '{entry}', expected name:d,d,d")
        if name in listed:
            raise CompileFault("E10002", f"--input_shape: found '{name}' twice, expected once")
        listed[name] = tuple(_range(dim, text) for dim in dims.split(",")) if dims else ()
    return listed


def _range(text: str, whole: str) -> Range:
    try:
        low, high = map(number, text.split("~")) if "~" in text else [number(text)] * 2
    except ValueError:
        raise CompileFault("E10002", f"--input_shape={whole}: '{text}' is not a number") from None
    if (low, high) == (-1, -1):
        return _ANY
    if low < 1 or (high != NO_END and high < low):
        raise CompileFault("E10011", f"--input_shape={whole}: '{text}' is not a positive number")
    return low, high


def _checked(graph: GraphInput, listed: tuple[Range, ...] | None) -> tuple[Range, ...]:
    """Return the ranges of one input. Raises CompileFault if they do not fit the graph's dims."""
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


# -- gears ---------------------------------------------------------------------------------------


def family_of(options: Options) -> tuple[Family, str | None]:
    """Return the kind of gears and the flag's value; None without gears. Raises CompileFault."""
    flags: dict[Family, str | None] = {
        "batch": options.batch_gears,
        "image": options.image_gears,
        "dims": options.dims_gears,
    }
    given = [(family, text) for family, text in flags.items() if text is not None]
    if len(given) > 1:
        names = " and ".join(_FLAGS[family] for family, _ in given)
        raise CompileFault("E10009", f"found {names}, expected one of them")
    if not given:
        return "static", None
    ((family, text),) = given
    if not text:
        raise CompileFault("E10004", f"{_FLAGS[family]} is empty, expected a list of gears")
    if family == "dims" and options.input_format != "ND":
        found = f"found --input_format={options.input_format}, expected ND"
        raise CompileFault("E10001", f"--dynamic_dims: {found}")
    if family == "image" and options.input_format not in _IMAGE_AXES:
        found = f"found --input_format={options.input_format}, expected NCHW"
        raise CompileFault("E10001", f"--dynamic_image_size: {found}")
    return family, text


def values_of(family: Family, text: str) -> tuple[Dims, ...]:
    """Parse a list of gears.

    Gears are separated by ";" and the values of a gear by ","; gears of batch by ",". A trailing
    separator is ignored, as in GE. Raises CompileFault.
    """
    flag = f"{_FLAGS[family]}={text}"
    between = "," if family == "batch" else ";"
    listed = text.removesuffix(between)
    try:
        gears = tuple(tuple(map(number, gear.split(","))) for gear in listed.split(between))
    except ValueError:
        code, expected = ("E10033", "1,2,4") if family == "batch" else ("E10001", "1,2;3,4")
        found = "found a value that is not a number"
        raise CompileFault(code, f"{flag}: {found}, expected a list such as {expected}") from None
    for gear in gears:
        if len(gear) != len(gears[0]):
            found = f"gear {gear} has {len(gear)} values, {gears[0]} has {len(gears[0])}"
            raise CompileFault("E10037", f"{flag}: {found}")
        if min(gear) < 1:
            found = f"found {min(gear)} in gear {gear}, expected 1 or more"
            raise CompileFault("E10038", f"{flag}: {found}")
    if len(set(gears)) < len(gears):
        raise CompileFault("E10039", f"{flag}: found a repeated gear, expected distinct gears")
    return gears


def check_count(family: Family, values: tuple[Dims, ...], soc: str) -> None:
    """Check that a chip supports this number of gears. Raises CompileFault."""
    most = MOST_GEARS_950 if soc.startswith("Ascend950") else MOST_GEARS
    flag = _FLAGS[family]
    if len(values) < LEAST_GEARS:
        found = f"found {len(values)} gear, expected {LEAST_GEARS} or more; one is a static shape"
        raise CompileFault("E10035", f"{flag}: {found}")
    if len(values) > most:
        raise CompileFault("E10036", f"{flag}: found {len(values)} gears, expected at most {most}")


def check_places(
    family: Family, options: Options, places: Mapping[str, Sequence[int]], width: int
) -> None:
    """Check that this kind of gears supports the -1 in --input_shape. Raises CompileFault.

    `places` has the axes that are -1, by input. `width` is the number of values in a gear.
    """
    flag = _FLAGS[family]
    count = sum(map(len, places.values()))
    if not count:
        code = "E10031" if family == "batch" else "E10040"
        found = "found no -1 in --input_shape, expected one for each value of a gear"
        raise CompileFault(code, f"{flag}: {found}")
    if family == "dims":
        for name, axes in places.items():
            if len(axes) > width:
                found = f"found {width} values in a gear, expected {len(axes)}, all for '{name}'"
                raise CompileFault("E10045", f"{flag}: {found}")
        if count != width:
            found = f"found {width} values in a gear, expected {count}, one for each -1"
            raise CompileFault("E10046" if count > width else "E10001", f"{flag}: {found}")
        return
    allowed = (0,) if family == "batch" else _IMAGE_AXES[options.input_format]
    code, what = ("E10018", "the first dim") if family == "batch" else ("E10019", "H and W")
    for name, axes in places.items():
        if tuple(axes) != allowed:
            found = f"found -1 in '{name}' at {axes}, expected it only for {what}"
            raise CompileFault(code, f"{flag}: {found}")
    if family == "image" and width != len(allowed):
        raise CompileFault("E10020", f"{flag}: found {width} values in a gear, expected 2: h,w")
