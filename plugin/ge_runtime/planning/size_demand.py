"""The sizes that gears must hold, tables of gears, and the padding of gears."""

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
    """Observed sizes, candidate gears, and the largest allowed size."""

    axes: tuple[str, ...]
    limit: tuple[int, ...]
    """The largest allowed size; always a gear."""
    align: int
    """Gears other than the limit are multiples of this number along every axis except ROWS."""
    sizes: Array
    """[distinct, axes] int64: the observed sizes within the limit."""
    counts: Array
    """[distinct] float64: the number of requests of each size."""
    beyond: int
    """The number of requests over the limit, which are ignored."""

    @classmethod
    def of(
        cls, histogram: Histogram, *, limits: Mapping[str, int] | None = None, align: int = 1
    ) -> SizeDemand:
        """Return the demand of a histogram.

        The default limit of an axis is its largest observed size, rounded up to `align`.

        Raises:
            HistogramFault: no size is within the limits.
        """
        counted = histogram.counts()
        sizes = np.array(list(counted), np.int64).reshape(-1, len(histogram.axes))
        counts = np.array(list(counted.values()), np.float64)
        largest = _round_up(sizes.max(axis=0, initial=1), _steps(histogram.axes, align)).tolist()
        limit = tuple(
            (limits or {}).get(axis, size)
            for axis, size in zip(histogram.axes, largest, strict=True)
        )
        # A histogram with steps may have rounded a size up, from within the limit to above it.
        within = (sizes <= _round_up(np.array(limit), np.array(histogram.steps))).all(axis=1)
        if not within.any():
            raise HistogramFault(
                f"histogram: found {len(sizes)} distinct sizes, none within the limit "
                f"{size_text(limit)}, expected at least one"
            )
        inside = np.minimum(sizes[within], limit)  # undo such rounding
        beyond = int(counts[~within].sum())
        return cls(histogram.axes, limit, align, inside, counts[within], beyond)

    @property
    def total(self) -> int:
        """Number of requests within the limit."""
        return int(self.counts.sum())

    @property
    def useful(self) -> Array:
        """[distinct] float64: elements of all requests of each size."""
        return element_counts(self.sizes) * self.counts

    @property
    def candidates(self) -> Array:
        """[distinct, axes] int64: the smallest aligned gear for each size."""
        return self.align_up(self.sizes)

    def align_up(self, sizes: Array) -> Array:
        """Return the smallest aligned gears for `sizes` [n, axes], which are within the limit."""
        return np.minimum(_round_up(sizes, _steps(self.axes, self.align)), self.limit)

    @property
    def bound(self) -> float:
        """The waste with a gear for each size. No other gears have less waste."""
        return self._waste(float(element_counts(self.candidates) @ self.counts))

    def waste(self, gears: GearTable) -> float:
        """Return padding / executed elements, if every request runs alone in its gear."""
        return self._waste(self.executed(gears))

    def executed(self, gears: GearTable) -> float:
        """Return the executed elements with padding, if every request runs alone in its gear."""
        return float(element_counts(np.array(gears, np.int64))[self.assign(gears)] @ self.counts)

    def assign(self, gears: GearTable) -> Array:
        """Return for each size the index of the smallest gear that holds it: [distinct] int64.

        The limit must be among `gears`.
        """
        along = zip(self.sizes.T, np.array(gears, np.int64).T, strict=True)
        holds = np.logical_and.reduce([sizes[:, None] <= most for sizes, most in along])
        first: Array = holds.argmax(axis=1)  # gears are ordered by elements
        return first

    def _waste(self, executed: float) -> float:
        return max(0.0, 1 - float(self.useful.sum()) / executed)


def _steps(axes: tuple[str, ...], align: int) -> Array:
    return np.array([1 if axis == ROWS else align for axis in axes], np.int64)


def _round_up(sizes: Array, steps: Array) -> Array:
    return -(-sizes // steps) * steps


GearTable: TypeAlias = tuple[tuple[int, ...], ...]
"""Gears with a size for every axis, ordered by elements. The limit is last."""


def sorted_gears(gears: Iterable[tuple[int, ...]]) -> GearTable:
    """Return the distinct gears, ordered by elements."""
    return tuple(sorted(set(gears), key=lambda gear: (math.prod(gear), gear)))


def element_counts(sizes: Array) -> Array:
    """Return the product of each row of `sizes` [n, axes]: [n] float64, exact up to 2**53."""
    product: Array = sizes.astype(np.float64).prod(axis=1)
    return product


def size_text(size: tuple[int, ...]) -> str:
    """Return a size as in config.pbtxt, e.g. "32x48"."""
    return "x".join(map(str, size))


def gears_key(axes: Sequence[str]) -> str:
    """Return the parameter for the gears of these axes, e.g. "gears.height,width"."""
    return f"gears.{','.join(axes)}"


def gears_value(gears: GearTable) -> str:
    """Return the value of the parameter `gears.<axes>` for these gears, e.g. "32x32, 64x48"."""
    return ", ".join(map(size_text, gears))


def pbtxt_lines(
    axes: Sequence[str], gears: GearTable, limits: Mapping[str, int], rows_key: str
) -> list[str]:
    """Return the lines of config.pbtxt for these gears.

    `rows_key` is the field or parameter for the largest number of rows of an execution.
    """
    lines = [_parameter(gears_key(axes), gears_value(gears))]
    for axis in axes:
        if axis == ROWS:  # as a comment: the server's batching may need a larger value
            lines.append(f"# {rows_key}: at least {limits[axis]}")
        else:
            lines.append(_parameter(f"limit.{axis}", str(limits[axis])))
    return lines


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
