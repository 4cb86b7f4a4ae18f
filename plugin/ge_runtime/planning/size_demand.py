"""The sizes that gears have to hold, tables of gears, and how well gears hold the sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.specs import ROWS, Array


@dataclass(frozen=True, slots=True)
class SizeDemand:
    """Sizes that occur, the gears that each could have, and the largest size that may occur."""

    axes: tuple[str, ...]
    limit: tuple[int, ...]
    """Always a gear: every size within it must have one."""
    align: int
    """Gears are multiples of it along every axis but ROWS; the limit itself may be none."""
    sizes: Array
    """[distinct, axes] int64, all within the limit."""
    counts: Array
    """[distinct] float64: how often each occurs."""
    beyond: int
    """How many sizes were left out, because they are over the limit."""

    @classmethod
    def of(
        cls, histogram: Histogram, *, limits: Mapping[str, int] | None = None, align: int = 1
    ) -> SizeDemand:
        """What `histogram` asks for.

        limits: the largest size of an axis; without one, the largest that occurs, rounded up.
        Raises HistogramFault if no size is within the limits.
        """
        counted = histogram.counts()
        sizes = np.array(list(counted), np.int64).reshape(-1, len(histogram.axes))
        counts = np.array(list(counted.values()), np.float64)
        largest = _round_up(sizes.max(axis=0, initial=1), _steps(histogram.axes, align)).tolist()
        limit = tuple(
            (limits or {}).get(axis, size)
            for axis, size in zip(histogram.axes, largest, strict=True)
        )
        # A histogram that rounds its sizes may have taken one within the limit over it.
        within = (sizes <= _round_up(np.array(limit), np.array(histogram.steps))).all(axis=1)
        if not within.any():
            raise HistogramFault(
                f"histogram: found {len(sizes)} distinct sizes, none within the limit "
                f"{size_text(limit)}, expected at least one"
            )
        inside = np.minimum(sizes[within], limit)  # what rounding took over the limit
        beyond = int(counts[~within].sum())
        return cls(histogram.axes, limit, align, inside, counts[within], beyond)

    @property
    def total(self) -> int:
        """How many sizes there are within the limit."""
        return int(self.counts.sum())

    @property
    def useful(self) -> Array:
        """[distinct] float64: elements of all that occur of each size."""
        return element_counts(self.sizes) * self.counts

    @property
    def candidates(self) -> Array:
        """[distinct, axes] int64: the least gear that could hold each size."""
        return self.align_up(self.sizes)

    def align_up(self, sizes: Array) -> Array:
        """The least gears that could hold `sizes` [n, axes], which are within the limit."""
        return np.minimum(_round_up(sizes, _steps(self.axes, self.align)), self.limit)

    @property
    def bound(self) -> float:
        """The least waste of any number of gears: every size has the least that could hold it."""
        return self._waste(float(element_counts(self.candidates) @ self.counts))

    def waste(self, gears: GearTable) -> float:
        """Padded elements as a share of all executed, if every size runs alone in its gear."""
        return self._waste(self.executed(gears))

    def executed(self, gears: GearTable) -> float:
        """Elements, padding included, if every size runs alone in its gear."""
        return float(element_counts(np.array(gears, np.int64))[self.assign(gears)] @ self.counts)

    def assign(self, gears: GearTable) -> Array:
        """For each size the gear of least elements that holds it: [distinct] indices of `gears`.

        The limit must be among `gears`.
        """
        along = zip(self.sizes.T, np.array(gears, np.int64).T, strict=True)
        holds = np.logical_and.reduce([sizes[:, None] <= most for sizes, most in along])
        first: Array = holds.argmax(axis=1)  # they are in the order of their elements
        return first

    def _waste(self, executed: float) -> float:
        return max(0.0, 1 - float(self.useful.sum()) / executed)


def _steps(axes: tuple[str, ...], align: int) -> Array:
    return np.array([1 if axis == ROWS else align for axis in axes], np.int64)


def _round_up(sizes: Array, steps: Array) -> Array:
    rounded: Array = -(-sizes // steps) * steps
    return rounded


GearTable: TypeAlias = tuple[tuple[int, ...], ...]
"""Gears of some axes: each a size for every axis. Fewest elements first, the limit last."""


def sorted_gears(gears: Iterable[tuple[int, ...]]) -> GearTable:
    """The distinct gears, fewest elements first."""
    return tuple(sorted(set(gears), key=lambda gear: (math.prod(gear), gear)))


def element_counts(sizes: Array) -> Array:
    """The product of each row of `sizes` [n, axes]: [n] float64, exact up to 2**53."""
    product: Array = sizes.astype(np.float64).prod(axis=1)
    return product


def size_text(size: tuple[int, ...]) -> str:
    """A size as config.pbtxt writes it, e.g. "32x48"."""
    return "x".join(map(str, size))


def gears_key(axes: Sequence[str]) -> str:
    """The parameter that holds the gears of these axes, e.g. "gears.height,width"."""
    return f"gears.{','.join(axes)}"


def gears_value(gears: GearTable) -> str:
    """Its value, e.g. "32x32, 64x48"."""
    return ", ".join(map(size_text, gears))


def pbtxt_lines(
    axes: Sequence[str], gears: GearTable, limits: Mapping[str, int], rows_key: str
) -> list[str]:
    """What config.pbtxt has to say for these gears.

    limits: of each of their axes. rows_key: the key that says how many rows an execution takes.
    """
    lines = [_parameter(gears_key(axes), gears_value(gears))]
    for axis in axes:
        if axis == ROWS:  # which says as well how many rows the server gathers: more may be good
            lines.append(f"# {rows_key}: at least {limits[axis]}")
        else:
            lines.append(_parameter(f"limit.{axis}", str(limits[axis])))
    return lines


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
