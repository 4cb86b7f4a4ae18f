"""What gears have to hold, and how well given gears hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ge_runtime.planning.histogram import Histogram, HistogramFault
from ge_runtime.planning.tables import GearTable, elements, size_text
from ge_runtime.specs import ROWS, Array


@dataclass(frozen=True, slots=True)
class Demand:
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
    ) -> Demand:
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
        inside = np.minimum(sizes[within], limit)
        beyond = int(counts[~within].sum())
        return cls(histogram.axes, limit, align, inside, counts[within], beyond)

    @property
    def total(self) -> int:
        """How many sizes there are within the limit."""
        return int(self.counts.sum())

    @property
    def useful(self) -> Array:
        """[distinct] float64: elements of all that occur of each size."""
        return elements(self.sizes) * self.counts

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
        return self._waste(float(elements(self.candidates) @ self.counts))

    def waste(self, gears: GearTable) -> float:
        """Padded elements as a share of all executed, if every size runs alone in its gear."""
        return self._waste(self.executed(gears))

    def executed(self, gears: GearTable) -> float:
        """Elements, padding included, if every size runs alone in its gear."""
        return float(elements(np.array(gears, np.int64))[self.assign(gears)] @ self.counts)

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
