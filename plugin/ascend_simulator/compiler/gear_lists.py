"""The lists of gears that the three gear flags give, and what each may have beside it.

Facts and limits: docs of ATC, "dynamic_gear"; GE's list of error codes. Where two codes fit, or the
documents name none, the choice is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ascend_simulator.compiler.faults import CompileFault
from ascend_simulator.compiler.flags import Options, number
from ascend_simulator.om import Dims, Family

LEAST_GEARS: Final = 2
MOST_GEARS: Final = 100
MOST_GEARS_950: Final = 256
"""Of chips named Ascend950..."""

_FLAGS: Final[Mapping[Family, str]] = {
    "batch": "--dynamic_batch_size",
    "image": "--dynamic_image_size",
    "dims": "--dynamic_dims",
}
_IMAGE_AXES: Final[Mapping[str, tuple[int, int]]] = {"NCHW": (2, 3), "NHWC": (1, 2)}


def family_of(options: Options) -> tuple[Family, str | None]:
    """Which gears, and their list as it was given; None of none. Raises CompileFault."""
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
        found = f"found --input_format={options.input_format}, expected NCHW or NHWC"
        raise CompileFault("E10001", f"--dynamic_image_size: {found}")
    return family, text


def values_of(family: Family, text: str) -> tuple[Dims, ...]:
    """The gears as they are listed: ";" between two, "," inside one; of batches "," between two.

    One more at the end is passed over, as by GE. Raises CompileFault.
    """
    flag = f"{_FLAGS[family]}={text}"
    between = "," if family == "batch" else ";"
    listed = text.removesuffix(between)
    try:
        gears = tuple(tuple(map(number, gear.split(","))) for gear in listed.split(between))
    except ValueError:
        code, expected = ("E10033", "1,2,4") if family == "batch" else ("E10001", "1,2;3,4")
        found = "found a value that is no number"
        raise CompileFault(code, f"{flag}: {found}, expected a list such as {expected}") from None
    for gear in gears:
        if len(gear) != len(gears[0]):
            found = f"gear {gear} has {len(gear)} values, {gears[0]} has {len(gears[0])}"
            raise CompileFault("E10037", f"{flag}: {found}")
        if min(gear) < 1:
            found = f"found {min(gear)} in gear {gear}, expected 1 or more"
            raise CompileFault("E10038", f"{flag}: {found}")
    if len(set(gears)) < len(gears):
        raise CompileFault("E10039", f"{flag}: found a gear twice, expected each once")
    return gears


def check_count(family: Family, values: tuple[Dims, ...], soc: str) -> None:
    """Whether a chip takes so many gears. Raises CompileFault."""
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
    """Whether the -1 of --input_shape are where this family of gears has its values.

    places: by input, the axes that are -1. width: values in a gear. Raises CompileFault.
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
                found = f"found {width} values in a gear, expected {len(axes)} for '{name}' alone"
                raise CompileFault("E10045", f"{flag}: {found}")
        if count != width:
            found = f"found {width} values in a gear, expected {count}, one for each -1"
            raise CompileFault("E10046" if count > width else "E10001", f"{flag}: {found}")
        return
    allowed = (0,) if family == "batch" else _IMAGE_AXES[options.input_format]
    code, what = ("E10018", "the first dim") if family == "batch" else ("E10019", "H and W")
    for name, axes in places.items():
        if tuple(axes) != allowed:
            found = f"found -1 in '{name}' at {axes}, expected it for {what} and nothing else"
            raise CompileFault(code, f"{flag}: {found}")
    if family == "image" and width != len(allowed):
        raise CompileFault("E10020", f"{flag}: found {width} values in a gear, expected 2: h,w")
