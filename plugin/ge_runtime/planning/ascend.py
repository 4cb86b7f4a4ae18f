"""Gears in the words of Ascend's compilers: flags of ATC, options of the graph engine (GE).

Their rules: every dimension that changes is -1 in the input shapes; a gear lists one value for
each -1, in the order of the shapes; gears are listed one by one, never multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ge_runtime.config import ATC_FLAGS
from ge_runtime.planning.target import Target
from ge_runtime.specs import ROWS, Dim, TensorSpec

LEAST_GEARS: Final = 2
MOST_GEARS: Final = 100
"""Of one model; 256 on Ascend 950."""

_IMAGE_RANK: Final = 4


@dataclass(frozen=True, slots=True)
class AscendOptions:
    """Both spellings of the same gears; empty where `note` says why there are none."""

    atc: tuple[str, ...] = ()
    """Flags, each ready for a shell."""
    ge: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def with_options(gears: AscendOptions, options: Mapping[str, str]) -> AscendOptions:
    """The gears with further options of the compiler, of those in ATC_FLAGS, in both spellings."""
    flags = (f'{ATC_FLAGS[name]}="{value}"' for name, value in options.items())
    return replace(gears, atc=(*gears.atc, *flags), ge={**gears.ge, **options})


def ascend_options(target: Target) -> AscendOptions:
    """The options that compile all gears of `target`.

    `--dynamic_batch_size` where only rows have gears, `--dynamic_image_size` where only the height
    and width of one image do, else `--dynamic_dims`. GE has one form for all.
    """
    if target.unlisted:
        return AscendOptions(note=f"they cannot list {'; '.join(target.unlisted)}")
    if target.gear_count > MOST_GEARS:
        found = f"found {target.gear_count} combinations of gears, expected at most {MOST_GEARS}"
        return AscendOptions(note=found)
    axes = {axis for axes in target.tables for axis in axes}
    fixed = {axis: limit for axis, limit in target.limits.items() if axis not in axes}
    dims = {spec.name: _dims(spec, target) for spec in target.inputs}
    if target.gear_count < LEAST_GEARS:
        shapes = _shapes(dims, next(target.gears()) | fixed)
        note = f"a single gear is a static shape; gears begin at {LEAST_GEARS}"
        return AscendOptions((f'--input_shape="{shapes}"',), note=note)
    shapes = _shapes(dims, fixed)
    changing = [dim for tensor in dims.values() for dim in tensor if dim in axes]
    values = ";".join(
        ",".join(str(gear[str(axis)]) for axis in changing) for gear in target.gears()
    )
    ge = {"ge.inputShape": shapes, "ge.dynamicDims": values, "ge.dynamicNodeType": "1"}
    if axes == {ROWS}:
        rows = ",".join(str(gear[ROWS]) for gear in target.gears())
        flags = [f'--dynamic_batch_size="{rows}"']
    elif layout := _image_layout(list(dims.values()), axes):
        flags = [f"--input_format={layout}", f'--dynamic_image_size="{values}"']
    else:
        flags = ["--input_format=ND", f'--dynamic_dims="{values}"']
    return AscendOptions((f'--input_shape="{shapes}"', *flags), ge)


def _dims(spec: TensorSpec, target: Target) -> tuple[Dim, ...]:
    return (ROWS, *spec.dims) if target.batched else spec.dims


def _shapes(dims: Mapping[str, tuple[Dim, ...]], fixed: Mapping[str, int]) -> str:
    """All shapes as the compilers want them: "name:64,-1;other:64"."""
    return ";".join(
        f"{name}:"
        + ",".join(str(fixed.get(str(dim), -1) if isinstance(dim, str) else dim) for dim in tensor)
        for name, tensor in dims.items()
    )


def _image_layout(tensors: list[tuple[Dim, ...]], axes: set[str]) -> str | None:
    """NCHW or NHWC, if only the H and W of one such tensor have gears."""
    changing = [dims for dims in tensors if axes & set(map(str, dims))]
    if len(changing) != 1 or len(changing[0]) != _IMAGE_RANK or len(axes) != 2:
        return None
    for layout, (height, width) in {"NCHW": (2, 3), "NHWC": (1, 2)}.items():
        if {str(changing[0][height]), str(changing[0][width])} == axes:
            return layout
    return None
