"""Why no gear holds a request, in words: what was found, and what would have been held."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from ge_runtime.batching.gears import Gears
from ge_runtime.specs import ROWS

Key: TypeAlias = tuple[str, ...]


def most_rows(gears: Gears, extents: Mapping[str, int]) -> int:
    """The most rows of these extents that a gear holds; 0 if none holds a single one."""
    return _most(gears.rows, lambda rows: gears.fit(rows, extents) is not None)


def explain(
    gears: Gears, keys: Collection[Key], rows: int, extents: Mapping[str, int]
) -> tuple[str, str, str]:
    """The axis to blame, ROWS for the rows; what was found of it; and what was expected.

    keys: the axes of each table. No gear holds `rows` rows of `extents`.
    """
    least = dict.fromkeys(extents, 1)

    def most_of(axis: str) -> int:
        return _most(extents[axis], lambda size: gears.fit(1, {**least, axis: size}) is not None)

    for axis, extent in extents.items():
        most = most_of(axis)
        if most < extent:
            return axis, f"{axis} {extent}", f"1 to {most} (the largest of {_key(keys, axis)})"
    most = most_rows(gears, least)
    if most < rows:
        return ROWS, f"{rows} rows", f"1 to {most} (the largest of {_key(keys, ROWS)})"
    joint = " and ".join(f"gears.{','.join(key)}" for key in keys if len(key) > 1)
    sizes = ", ".join(f"{axis} {extent}" for axis, extent in extents.items())
    most = most_rows(gears, extents)
    if most:
        expected = f"at most {most} of that size: no gear of {joint} holds more"
        return ROWS, f"{rows} rows of {sizes}", expected
    return next(iter(extents)), sizes, f"sizes that one gear of {joint} holds together"


def _most(limit: int, held: Callable[[int], bool]) -> int:
    """The largest number from 1 to `limit` that is held, if all that are less are; 0 if none."""
    return bisect_left(range(1, limit + 1), True, key=lambda number: not held(number))


def _key(keys: Collection[Key], axis: str) -> str:
    return next((f"gears.{','.join(key)}" for key in keys if axis in key), "all gears")
