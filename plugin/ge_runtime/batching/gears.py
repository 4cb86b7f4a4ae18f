"""Gears: the sizes that executions are prepared for, and the choice of the gear for a batch.

A table declares sizes of one axis, or of several axes together. An axis in no table is free: an
execution has exactly the size that its batch needs. Along an `equal` axis, which is never padded, a
gear holds only its own size. Immutable; safe from any thread.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.specs import ROWS

Ints: TypeAlias = NDArray[np.int64]


class Gear(NamedTuple):
    """The size of one execution."""

    rows: int
    extents: Mapping[str, int]
    """The size along every axis of the model."""

    def __str__(self) -> str:
        axes = (f"{axis} {extent}" for axis, extent in self.extents.items())
        return ", ".join((f"{self.rows} row(s)", *axes))


class Fitted(NamedTuple):
    """The gears of many batches, as arrays that broadcast with each other."""

    rows: Ints
    extents: dict[str, Ints]
    held: NDArray[np.bool_]
    """False if no gear holds the batch; rows and extents are then meaningless."""


class Gears:
    """The sizes at which a model may be executed."""

    def __init__(
        self,
        axes: Sequence[str],
        limits: Mapping[str, int],
        rows: int,
        tables: Mapping[tuple[str, ...], Sequence[tuple[int, ...]]],
        equal: Collection[str] = (),
        *,
        smallest: Mapping[str, int] | None = None,
        steps: Mapping[str, int] | None = None,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        """Declare the sizes.

        Args:
            axes: All axes of the model.
            limits: The largest size of each axis.
            rows: Largest number of rows of a batch.
            tables: The declared sizes by axes, possibly with ROWS: each table has at least one
                tuple of positive numbers. Every axis is in at most one table.
            equal: Axes along which a gear holds only its own size, as nothing may be padded.
            smallest: The size of a small execution by axis; by default 1.
            steps: The step of the sizes of executions by axis; by default 1.
            totals: The largest number of rows x size by axis; such an axis and the rows are in no
                table. By default unlimited.
        """
        self._smallest = dict(smallest or dict.fromkeys(axes, 1))
        self._steps = dict(steps or dict.fromkeys(axes, 1))
        self._limits = {ROWS: rows, **{axis: limits[axis] for axis in axes}}
        self._tables = tuple(_Table(key, points, equal) for key, points in tables.items())
        # The declared sizes of each equal axis with gears.
        self._exact = {
            axis: sorted({point[at] for point in table.points})
            for table in self._tables
            for at, axis in enumerate(table.axes)
            if axis in equal
        }
        self._totals = dict(totals or {})
        self._padded = Gears(axes, limits, rows, tables, totals=totals) if self._exact else self
        self._free = tuple(axis for axis in self._limits if not any(axis in key for key in tables))

    @property
    def rows(self) -> int:
        """Largest number of rows of a batch."""
        return self._limits[ROWS]

    @property
    def limits(self) -> dict[str, int]:
        """The largest size of each axis."""
        return {axis: limit for axis, limit in self._limits.items() if axis != ROWS}

    @property
    def fixed(self) -> bool:
        """True if no axis is free: `every` then lists all possible sizes."""
        return not self._free

    def fit(self, rows: int, extents: Mapping[str, int]) -> Gear | None:
        """Return the gear with the fewest elements (rows times all extents) that holds a batch.

        Free axes get the requested size, if that is within the limit. Among gears with equally many
        elements, the gear with the smaller extents is chosen; a table's first axis counts most.

        Args:
            rows: Rows of the batch.
            extents: Size along every axis; along equal axes a gear holds only its own size.

        Returns:
            The gear, or None if no gear holds the batch.
        """
        sizes = {ROWS: rows, **extents}
        for axis in self._free:
            if sizes[axis] > self._limits[axis]:
                return None
        for axis, total in self._totals.items():
            if rows * sizes[axis] > total:
                return None
        # Each axis is in one table only, so the product is least if each table's factor is least.
        for table in self._tables:
            point = table.find([sizes[axis] for axis in table.axes])
            if point is None:
                return None
            sizes.update(zip(table.axes, point, strict=True))
        rows = sizes.pop(ROWS)
        return Gear(rows, sizes)

    def at_least(self, rows: int, extents: Mapping[str, int]) -> Gear | None:
        """Return `fit` as if all axes could be padded: the size of a trial execution, not of data.

        The graph accepts its sizes: at least the smallest size, and multiples of the steps.
        """
        sizes = {}
        for axis, extent in extents.items():
            size, step = max(extent, self._smallest[axis]), self._steps[axis]
            sizes[axis] = -(-size // step) * step
        return self._padded.fit(rows, sizes)

    @property
    def smallest(self) -> Gear:
        """The smallest execution to try."""
        least = Gear(1, self._smallest)
        return self.at_least(least.rows, least.extents) or least

    def fit_many(self, rows: Ints, extents: Mapping[str, Ints]) -> Fitted:
        """Return `fit` for many batches; all arrays broadcast with each other.

        Arrays stay as small as the tables allow: extents of shape [1, n] stay [1, n] for any shape
        of `rows`, if the axis is alone in its table.
        """
        sizes = {ROWS: rows, **extents}
        held: NDArray[np.bool_] = np.ones(1, np.bool_)
        for axis in self._free:
            held = held & (sizes[axis] <= self._limits[axis])
        for axis, total in self._totals.items():
            held = held & (sizes[axis] * rows <= total)
        for table in self._tables:
            points, within = table.find_many([sizes[axis] for axis in table.axes])
            sizes.update(zip(table.axes, points, strict=True))
            held = held & within
        rows = sizes.pop(ROWS)
        return Fitted(rows, sizes, held)

    def every(self) -> tuple[Gear, ...]:
        """Return all combinations of declared sizes, with free axes at their limits.

        They are sorted by their number of elements. With totals, each combination becomes the two
        sizes that reach the total with the fewest and with the most rows. Memory that grows with
        the rows, the total, or the squared size is largest at one of the two.
        """
        combinations = product(*(table.points for table in self._tables))
        gears = []
        for points in combinations:
            sizes = dict(self._limits)
            for table, point in zip(self._tables, points, strict=True):
                sizes.update(zip(table.axes, point, strict=True))
            rows = sizes.pop(ROWS)
            gears += self._within_totals(Gear(rows, sizes))
        return tuple(sorted(gears, key=lambda gear: gear.rows * math.prod(gear.extents.values())))

    def _within_totals(self, largest: Gear) -> list[Gear]:
        """Return the sizes of executions within the totals that need the most memory."""
        if not self._totals:
            return [largest]
        # Rounded up, so that no execution between the two sizes is larger.
        most = dict(largest.extents)
        rows = largest.rows
        for axis, total in self._totals.items():
            rows = min(rows, -(-total // most[axis]))
        for axis, total in self._totals.items():
            most[axis] = min(most[axis], -(-total // largest.rows))
        ends = [Gear(rows, largest.extents), Gear(largest.rows, most)]
        return ends if ends[0] != ends[1] else ends[:1]

    def label(self, gear: Gear) -> str | None:
        """Return the declared sizes of a gear, e.g. "batch 8, tokens 64".

        Returns None without declared sizes, and for sizes that no table has.
        """
        sizes = {ROWS: gear.rows, **gear.extents}
        parts = []
        for table in self._tables:
            point = tuple(sizes[axis] for axis in table.axes)
            if point not in table.points:
                return None
            parts += [f"{axis} {size}" for axis, size in zip(table.axes, point, strict=True)]
        return ", ".join(parts) or None

    def most_rows(self, extents: Mapping[str, int]) -> int:
        """Return the largest number of rows of these extents that a gear holds; 0 for none."""
        return _largest_held(self.rows, lambda rows: self.fit(rows, extents) is not None)

    @property
    def rows_of_any_size(self) -> int:
        """Largest number of rows that a gear holds for all sizes within the limits; 0 for none."""
        return 0 if self._exact else self.most_rows(self.limits)

    def explain_overflow(self, rows: int, extents: Mapping[str, int]) -> tuple[str, str, str]:
        """Explain why no gear holds a batch.

        Returns the axis that causes it, ROWS for the rows; what was found; and what was expected.
        """
        for axis, own in self._exact.items():
            if extents[axis] not in own:
                expected = (
                    f"a size of {self._key(axis)} ({', '.join(map(str, own))}): nothing is padded "
                    f"along it (padding.{axis}: equal)"
                )
                return axis, f"{axis} {extents[axis]}", expected
        least = dict.fromkeys(extents, 1)

        def holds(size: int, axis: str) -> bool:
            return self._padded.fit(1, {**least, axis: size}) is not None

        # A single axis is the simplest reason, then the rows; only then sizes together.
        for axis, extent in extents.items():
            most = _largest_held(extent, partial(holds, axis=axis))
            if most < extent:
                return axis, f"{axis} {extent}", f"1 to {most} (the largest of {self._key(axis)})"
        for axis, total in self._totals.items():
            if rows * extents[axis] > total:
                found = f"{rows} row(s) of {axis} {extents[axis]}, {rows * extents[axis]} in total"
                return axis, found, f"at most {total} in total (limit.total.{axis})"
        most = self._padded.most_rows(least)
        if most < rows:
            return ROWS, f"{rows} rows", f"1 to {most} (the largest of {self._key(ROWS)})"
        joint = " and ".join(
            f"gears.{','.join(table.axes)}" for table in self._tables if len(table.axes) > 1
        )
        sizes = ", ".join(f"{axis} {extent}" for axis, extent in extents.items())
        most = self.most_rows(extents)
        if most:
            expected = f"at most {most} of that size: no gear of {joint} holds more"
            return ROWS, f"{rows} rows of {sizes}", expected
        equal = ", ".join(f"padding.{axis}: equal" for axis in self._exact)
        unpadded = f" without padding ({equal})" if equal else ""
        return (
            next(iter(extents)),
            sizes,
            f"sizes that one gear of {joint} holds together{unpadded}",
        )

    def _key(self, axis: str) -> str:
        keys = (table.axes for table in self._tables if axis in table.axes)
        return next((f"gears.{','.join(key)}" for key in keys), "all gears")

    def __repr__(self) -> str:
        tables = (
            f"{','.join(table.axes)} = {', '.join('x'.join(map(str, p)) for p in table.points)}"
            for table in self._tables
        )
        return f"<Gears {'; '.join((*tables, *(f'{axis} free' for axis in self._free)))}>"


class _Table:
    """Declared sizes of some axes; finds the point with the fewest elements for requested sizes.

    Along an axis only the rank of a size among the declared sizes matters. So there is one cell for
    every combination of ranks, which holds the best point.
    """

    def __init__(
        self, axes: tuple[str, ...], points: Iterable[tuple[int, ...]], equal: Collection[str]
    ) -> None:
        """equal: axes along which a point holds only its own size."""

        def preference(point: tuple[int, ...]) -> tuple[int, ...]:
            extents = (size for axis, size in zip(axes, point, strict=True) if axis != ROWS)
            return (math.prod(point), *extents)

        self.axes = axes
        self.points = sorted(set(points), key=preference)
        columns = np.array(self.points, np.int64).T
        declared = [np.unique(column) for column in columns]
        shape = [len(sizes) + 1 for sizes in declared]
        cells = np.full(shape, len(self.points), np.int64)
        ranks = [np.searchsorted(*pair) for pair in zip(declared, columns, strict=True)]
        first = [
            rank if axis in equal else np.zeros_like(rank)
            for axis, rank in zip(axes, ranks, strict=True)
        ]
        # Each point is written to all cells up to its own, but along equal axes only to its own.
        # The best point is written last.
        corners = list(zip(zip(*first, strict=True), zip(*ranks, strict=True), strict=True))
        for index, (low, high) in reversed(list(enumerate(corners))):
            own = (slice(start, rank + 1) for start, rank in zip(low, high, strict=True))
            cells[tuple(own)] = index
        self._cells = cells.ravel()
        # For each axis, the contribution of each size to the index of the cell. The last entry is
        # for all sizes above the largest declared size.
        self._places = [
            _ranks(sizes, exact=axis in equal) * math.prod(shape[position:])
            for position, (axis, sizes) in enumerate(zip(axes, declared, strict=True), start=1)
        ]
        self._columns = [np.append(column, 1) for column in columns]

    def find(self, sizes: Sequence[int]) -> tuple[int, ...] | None:
        """Return the best point that holds `sizes`, one per axis; None if no point does."""
        cell = 0
        for places, size in zip(self._places, sizes, strict=True):
            cell += places.item(min(size, len(places) - 1))
        index = self._cells.item(cell)
        return self.points[index] if index < len(self.points) else None

    def find_many(self, sizes: Sequence[Ints]) -> tuple[list[Ints], NDArray[np.bool_]]:
        """Return the sizes of the best points, one array per axis, and which points exist."""
        cell = self._places[0].take(sizes[0], mode="clip")
        for places, size in zip(self._places[1:], sizes[1:], strict=True):
            cell = cell + places.take(size, mode="clip")
        index = self._cells.take(cell)
        return [column.take(index) for column in self._columns], index < len(self.points)


def _ranks(declared: Ints, *, exact: bool) -> Ints:
    """Return how many declared sizes are smaller, for each size from 0 to the largest plus one.

    exact: sizes that are not declared get the rank of sizes above the largest.
    """
    sizes = np.arange(declared[-1] + 2)
    ranks: Ints = np.searchsorted(declared, sizes)
    return np.where(np.isin(sizes, declared), ranks, len(declared)) if exact else ranks


def _largest_held(limit: int, held: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that is `held`; all smaller numbers must be, too."""
    return bisect_left(range(1, limit + 1), True, key=lambda number: not held(number))
