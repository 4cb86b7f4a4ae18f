"""The sizes of axes, and gears: the sizes that executions are prepared for.

Every axis needs a limit, from which memory is planned. An axis is in one `gears` key at most. An
axis in no such key is free: a batch is as large as its largest row needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

from ge_runtime.config.model_tensors import ModelTensors
from ge_runtime.config.parameter_table import ALIGN, GEARS, LIMIT, MINIMUM, PACKING, TOTAL
from ge_runtime.config.parameters import ConfigErrors, Family, Parameters, split_names
from ge_runtime.specs import PAST, ROWS, Relation, TensorSpec


@dataclass(frozen=True, slots=True)
class AxisSizes:
    """The sizes of all axes; every mapping except `totals` has all axes."""

    limits: Mapping[str, int]
    """Largest size."""
    minimums: Mapping[str, int]
    """Smallest size in a request; 0 for PAST if states grow."""
    steps: Mapping[str, int]
    """Sizes of executions are multiples of these."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Largest number of rows x size of an execution, for axes where it is limited."""

    @classmethod
    def read(cls, parameters: Parameters, tensors: ModelTensors) -> AxisSizes:
        """Read config.pbtxt.

        Adds an error for a relation that is below 1 even if all axes are at their limits.
        """
        limits, totals = _read_limits(parameters, tensors)
        minimums = {**dict.fromkeys(limits, 1), **_read(MINIMUM, parameters, tensors)}
        if tensors.grows:
            minimums[PAST] = 0
        steps = {**dict.fromkeys(limits, 1), **_read(ALIGN, parameters, tensors)}
        errors = parameters.errors
        for axis, limit in limits.items():
            if minimums[axis] > limit:
                expected = f"at most {limit} (limit.{axis})"
                errors.add(f"parameter 'min.{axis}'", minimums[axis], expected)
            if limit % steps[axis]:
                expected = f"a multiple of {steps[axis]} (align.{axis})"
                errors.add(f"parameter 'limit.{axis}'", limit, expected)
        for axis, total in totals.items():
            if total < limits.get(axis, 0):
                expected = f"at least {limits[axis]} (limit.{axis}): one row may be as large"
                errors.add(f"parameter 'limit.total.{axis}'", total, expected)
        return cls(limits, minimums, steps, totals)

    def executed(self, axis: str, size: int) -> int:
        """Return the smallest size of an execution that holds `size` along the axis."""
        step = self.steps[axis]
        return -(-max(size, self.minimums[axis]) // step) * step

    def smallest(self, outputs: Iterable[TensorSpec]) -> dict[str, int]:
        """Return the sizes of a small execution at which all outputs have a size of at least 1."""
        sizes = {axis: self.executed(axis, 1) for axis in self.limits}
        for dim in (dim for spec in outputs for dim in spec.dims if isinstance(dim, Relation)):
            # A relation never decreases when axes grow, and is at least 1 at the limits.
            while dim.size(sizes) < 1 and any(sizes[a] < self.limits[a] for a in dim.axes):
                for axis in dim.axes:
                    sizes[axis] = min(self.executed(axis, sizes[axis] + 1), self.limits[axis])
        return sizes


def _read(family: Family[int], parameters: Parameters, tensors: ModelTensors) -> dict[str, int]:
    # The size along PAST follows from the sequence; requests do not choose it.
    known = [axis for axis in tensors.axes if not tensors.grows or axis != PAST]
    return {axis: size for _, axis, size in parameters.entries(family, "axis", known)}


def _read_limits(
    parameters: Parameters, tensors: ModelTensors
) -> tuple[dict[str, int], dict[str, int]]:
    limits: dict[str, int] = {}
    totals: dict[str, int] = {}
    errors = parameters.errors
    of_totals = TOTAL.pattern.removeprefix(f"{LIMIT.name}.").removesuffix("<axis>")
    for name, target, size in parameters.entries(LIMIT):
        axis = target.removeprefix(of_totals)
        if target in tensors.axes:
            limits[target] = size
        elif axis != target and axis in tensors.axes:
            totals[axis] = size
        else:
            errors.add_unknown(name, "axis", target, tensors.axes)
    for axis in dict.fromkeys(axis for spec in tensors.sources.values() for axis in spec.axes):
        if axis not in limits:
            expected = f"the largest size of axis '{axis}': memory is planned from it"
            errors.add(f"parameter 'limit.{axis}'", "nothing", expected)
    for spec in tensors.outputs.values():
        for dim in spec.dims:
            if isinstance(dim, Relation) and limits.keys() >= {*dim.axes} and dim.size(limits) < 1:
                found = f"'{dim}', {dim.size(limits)} where all axes are at their limits"
                errors.add(f"parameter 'axes.{spec.name}'", found, "at least 1")
    return limits, totals


GearSizes: TypeAlias = tuple[tuple[int, ...], ...]
"""Gears, each with a size for every axis of the `gears` key."""

_MOST: Final = 100
"""Maximum number of gears in a key. Each is executed at load, and engines recommend only a few."""
_AUTO: Final = re.compile(r"auto\s+(\d+)", re.ASCII)
# At most 18 digits, so that sizes stay within 64 bits.
_GEAR: Final = re.compile(r"\d{1,18}(\s*x\s*\d{1,18})*", re.ASCII)


def read_gears(
    parameters: Parameters,
    tensors: ModelTensors,
    axis_sizes: AxisSizes,
    *,
    rows: int,
    fallback: bool,
    compiled: bool,
) -> dict[tuple[str, ...], GearSizes | int]:
    """Return, for the axes of each key, the gears, smallest first, or how many to derive.

    Args:
        parameters: The model's parameters.
        tensors: The model's tensors.
        axis_sizes: The sizes of axes.
        rows: Largest number of rows of a batch; 0 if executions have no batch dimension.
        fallback: True if requests that fit no gear are executed at their own size. Then the gears
            need not hold the largest size.
        compiled: True if graphs are compiled for fixed sizes. Then errors do not suggest
            `fallback`.
    """
    reader = _Reader(tensors, axis_sizes, parameters.errors, rows, fallback, compiled)
    for key_field, key, text in parameters.entries(GEARS):
        reader.read(key_field, key, text)
    for axis in axis_sizes.totals:
        name = f"parameter 'limit.total.{axis}'"
        geared = next((key for key in reader.gears if not {axis, ROWS}.isdisjoint(key)), None)
        if geared is not None:
            found = f"gears.{','.join(geared)}"
            parameters.errors.add(name, found, "no gears of the axis or of batch, or no total")
        if fallback:
            parameters.errors.add(name, "oversize: fallback", "oversize: error")
    return reader.gears


class _Reader:
    """Collects the gears of all keys; each axis may be in one of them."""

    def __init__(
        self,
        tensors: ModelTensors,
        axis_sizes: AxisSizes,
        errors: ConfigErrors,
        rows: int,
        fallback: bool,
        compiled: bool,
    ) -> None:
        self.gears: dict[tuple[str, ...], GearSizes | int] = {}
        self._tensors = tensors
        limits = axis_sizes.limits
        self._most = {ROWS: rows, **limits} if rows else limits
        self._axis_sizes = axis_sizes
        self._errors = errors
        self._fallback = fallback
        self._or_fallback = "" if compiled else "; or oversize: fallback"
        self._keys: dict[str, str] = {}

    def read(self, field: str, key: str, text: str) -> None:
        axes = split_names(key)
        for axis in axes:
            self._check_axis(field, key, axis)
        table = _read_table(field, text, axes, self._errors)
        if table is None:
            return
        self.gears[axes] = table
        if isinstance(table, tuple) and all(axis in self._most for axis in axes):
            self._check_sizes(field, axes, table)
            self._check_relations(field, axes, table)

    def _check_axis(self, field: str, key: str, axis: str) -> None:
        if axis == ROWS and ROWS not in self._most:
            expected = "axes only: with max_batch_size 0 requests are executed one by one"
            self._errors.add(field, f"'{ROWS}'", expected)
        elif axis != ROWS and axis not in self._tensors.axes:
            known = (*self._tensors.axes, *([ROWS] if ROWS in self._most else []))
            self._errors.add_unknown(field, "axis", axis, known)
        if axis in self._keys:
            other = self._keys[axis]
            where = "twice" if other == key else f"in 'gears.{other}' as well"
            self._errors.add(field, f"axis '{axis}' {where}", "each axis in one place only")
        self._keys[axis] = key

    def _check_sizes(self, field: str, axes: Sequence[str], table: GearSizes) -> None:
        """Add errors for gears beyond the limits, or if no gear holds one row at the limits."""
        for axis, sizes in zip(axes, zip(*table, strict=True), strict=True):
            if max(sizes) > self._most[axis]:
                limit = "the most rows of a batch" if axis == ROWS else f"limit.{axis}"
                expected = f"at most {self._most[axis]} ({limit}): memory is planned from it"
                self._errors.add(field, f"{axis} {max(sizes)}", expected)
                return
            for size in sizes if axis != ROWS else ():
                if self._axis_sizes.executed(axis, size) != size:
                    expected = f"sizes that executions have (min.{axis}, align.{axis}), e.g. "
                    expected += str(self._axis_sizes.executed(axis, size))
                    self._errors.add(field, f"{axis} {size}", expected)
                    return
        # No gear needs to hold max_batch_size rows: the server gathers up to this number for a
        # request batch, which may then be executed in several parts.
        largest = tuple(1 if axis == ROWS else self._most[axis] for axis in axes)
        if not self._fallback and not any(
            all(own >= size for own, size in zip(gear, largest, strict=True)) for gear in table
        ):
            shape = ", ".join(f"{axis} {self._most[axis]}" for axis in axes if axis != ROWS)
            expected = "one, as the limit allows requests of that size"
            self._errors.add(field, f"no gear that holds {shape}", expected + self._or_fallback)

    def _check_relations(self, field: str, axes: Sequence[str], table: GearSizes) -> None:
        """Add errors for gears at which an output would have a size below 1."""
        for spec in self._tensors.outputs.values():
            for dim in spec.dims:
                if not isinstance(dim, Relation) or not self._most.keys() >= {*dim.axes}:
                    continue
                for gear in table:
                    size = dim.size({**self._most, **dict(zip(axes, gear, strict=True))})
                    if size < 1 and {*axes} & {*dim.axes}:
                        text = _gear_text(gear)
                        found = f"{text}, where output '{spec.name}' has '{dim}' = {size}"
                        self._errors.add(field, found, "gears that give every output a size")


def check_reproducible(
    parameters: Parameters,
    gears: Mapping[tuple[str, ...], GearSizes | int],
    axes: Collection[str],
    counting: Sequence[str],
    *,
    rows: int,
) -> None:
    """Add errors for anything that makes an execution depend on more than its requests' own gear.

    Args:
        parameters: The model's parameters.
        gears: The gears as read.
        axes: All axes of the model.
        counting: Graph inputs whose shape or values depend on all requests of an execution.
        rows: Largest number of rows of a batch; 0 if executions have no batch dimension.
    """
    field, errors = "parameter 'reproducible'", parameters.errors
    if parameters.text(PACKING) is not None:
        expected = "no packing: the place of a packed row depends on the rows before it"
        errors.add(field, "'packing'", expected)
    for name in counting:
        expected = "no such input: its value depends on all requests of an execution"
        errors.add(field, f"graph input '{name}'", expected)
    for own, table in gears.items():
        if isinstance(table, int):
            found = f"'gears.{','.join(own)}: auto {table}'"
            errors.add(field, found, "sizes as numbers, which are the same at every start")
    of_rows = {own: table for own, table in gears.items() if ROWS in own}
    if rows and not of_rows:
        expected = "'gears.batch', one number: the rows of every execution, e.g. 4"
        errors.add(field, "no gears of rows", expected)
    most = 1
    for own, table in of_rows.items():
        if isinstance(table, int):
            continue
        at = own.index(ROWS)
        others = [gear[:at] + gear[at + 1 :] for gear in table]
        most = max(gear[at] for gear in table)
        if len(set(others)) < len(others):
            shown = ", ".join(map(_gear_text, table))
            each = "one number of rows" + (" for each size" if len(own) > 1 else "")
            errors.add(field, f"'gears.{','.join(own)}: {shown}'", each)
    free = sorted(set(axes) - set(chain.from_iterable(gears)))
    if free and most > 1:
        expected = "gears for every axis, which a load can check; or 'gears.batch: 1'"
        errors.add(field, f"axis '{free[0]}' without gears", expected)


def _read_table(
    field: str, text: str, axes: Sequence[str], errors: ConfigErrors
) -> GearSizes | int | None:
    """Return the gears in `text`, smallest first, or the number to derive; None after an error."""
    if auto := _AUTO.fullmatch(text):
        if 1 <= int(auto[1]) <= _MOST:
            return int(auto[1])
        errors.add(field, f"'{text}'", f"'auto' and a number from 1 to {_MOST}")
        return None
    gears = []
    for entry in split_names(text):
        gear = tuple(map(int, entry.split("x"))) if _GEAR.fullmatch(entry) else ()
        if len(gear) != len(axes):
            example = ", ".join("x".join([size] * len(axes)) for size in ("16", "32"))
            each = f", one size for each of {', '.join(axes)}" if len(axes) > 1 else ""
            errors.add(field, f"'{entry}'", f"gears as in '{example}'{each}; or 'auto 4'")
            return None
        gears.append(gear)
    if any(0 in gear for gear in gears):
        errors.add(field, f"'{text}'", "sizes of at least 1")
        return None
    for gear in gears:
        if gears.count(gear) > 1:
            errors.add(field, f"{_gear_text(gear)} twice", "each gear once")
            return None
    if len(gears) > _MOST:
        errors.add(field, f"{len(gears)} gears", f"at most {_MOST}")
        return None
    return tuple(sorted(gears))


def _gear_text(gear: Sequence[int]) -> str:
    return "x".join(map(str, gear))
