"""Tables of gears: their order, their elements, and how config.pbtxt writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ge_runtime.specs import ROWS, Array

GearTable: TypeAlias = tuple[tuple[int, ...], ...]
"""Gears of some axes: each a size for every axis. Fewest elements first, the limit last."""


def in_order(gears: Iterable[tuple[int, ...]]) -> GearTable:
    """The distinct gears, fewest elements first."""
    return tuple(sorted(set(gears), key=lambda gear: (math.prod(gear), gear)))


def elements(sizes: Array) -> Array:
    """The product of each row of `sizes` [n, axes]: [n] float64, exact up to 2**53."""
    product: Array = sizes.astype(np.float64).prod(axis=1)
    return product


def size_text(size: tuple[int, ...]) -> str:
    """A size as config.pbtxt writes it, e.g. "32x48"."""
    return "x".join(map(str, size))


def key_of(axes: Sequence[str]) -> str:
    """The parameter that holds the gears of these axes, e.g. "gears.height,width"."""
    return f"gears.{','.join(axes)}"


def value_of(gears: GearTable) -> str:
    """Its value, e.g. "32x32, 64x48"."""
    return ", ".join(map(size_text, gears))


def pbtxt_lines(
    axes: Sequence[str], gears: GearTable, limits: Mapping[str, int], rows_key: str
) -> list[str]:
    """What config.pbtxt has to say for these gears.

    limits: of each of their axes. rows_key: the key that says how many rows an execution takes.
    """
    lines = [_parameter(key_of(axes), value_of(gears))]
    for axis in axes:
        if axis == ROWS:  # which says as well how many rows the server gathers: more may be good
            lines.append(f"# {rows_key}: at least {limits[axis]}")
        else:
            lines.append(_parameter(f"limit.{axis}", str(limits[axis])))
    return lines


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
