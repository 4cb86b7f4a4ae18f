"""The cost model of executions: the seconds that one of given rows and sizes takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.gears import Ints

LAUNCH_FLOOR_S: Final = 50e-6
"""The least cost of an execution, however small: gathering, bookkeeping and scattering take at
least this."""

MOST_GROWING: Final = 4096
"""Rows from which on a row grows no dearer."""

_ROOTS: Final = np.sqrt(np.arange(MOST_GROWING + 1))
_ONE: Final = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True)
class CostModel:
    """The time of an execution: launch + rows * elements * (a + b * elements + c * sqrt(rows)).

    The elements are those of one row. Their square stands for what looks at all pairs of positions,
    as attention does; the root of the rows for batches that no longer fit into caches, whose rows
    grow dearer with their number. No coefficient is negative, so time never falls when rows or
    elements grow.
    """

    launch_s: float
    """What every execution costs, however small."""
    element_s: float
    """Per element of a row."""
    element2_s: float
    """Per squared element of a row."""
    terms: tuple[tuple[str, ...], ...]
    """The distinct tuples of axes that inputs have; none: a row counts as one element."""
    growth_s: float = 0.0
    """Per element of a row and root of the rows."""

    def __str__(self) -> str:
        growth = f", growth {self.growth_s * 1e9:.3g} ns" if self.growth_s else ""
        return (
            f"launch {self.launch_s * 1e6:.0f} us, element {self.element_s * 1e9:.3g} ns, "
            f"squared element {self.element2_s * 1e9:.3g} ns{growth}"
        )

    def scaled(self, factor: float) -> CostModel:
        """The same where every execution takes `factor` times as long."""
        return CostModel(
            self.launch_s * factor,
            self.element_s * factor,
            self.element2_s * factor,
            self.terms,
            self.growth_s * factor,
        )

    def elements(self, extents: Mapping[str, int]) -> int:
        """The elements of one row: for each term the product of its extents, added up."""
        if not self.terms:
            return 1
        return sum(math.prod(extents[axis] for axis in term) for term in self.terms)

    def seconds(self, rows: int, extents: Mapping[str, int]) -> float:
        """The time of an execution of `rows` rows of `extents`, in seconds."""
        elements = self.elements(extents)
        element_s = self.element_s + self.element2_s * elements
        if self.growth_s:
            element_s += self.growth_s * _ROOTS.item(min(rows, MOST_GROWING))
        return self.launch_s + rows * elements * element_s

    def elements_many(self, extents: Mapping[str, Ints]) -> Ints:
        """`elements` for arrays that broadcast with each other."""
        products = [
            reduce(np.multiply, [extents[axis] for axis in term] or [_ONE]) for term in self.terms
        ]
        total: Ints = reduce(np.add, products or [_ONE])
        return total

    def seconds_many(self, rows: Ints, extents: Mapping[str, Ints]) -> NDArray[np.float64]:
        """`seconds` for arrays that broadcast with each other."""
        return self.seconds_at(rows, self.elements_many(extents))

    def seconds_at(self, rows: Ints, elements: Ints) -> NDArray[np.float64]:
        """`seconds` for arrays of rows and of the elements of one row."""
        # In place, because batches of many requests make large arrays; and what depends on the
        # elements alone is a small array where rows alone make a large one.
        row_s = np.multiply(elements, self.element2_s, dtype=np.float64)
        row_s += self.element_s
        row_s *= elements
        if not self.growth_s:
            result: NDArray[np.float64] = row_s * rows
        else:
            # Clipped below, too: whoever asks for all runs of a batch has rows less than 0.
            result = _ROOTS.take(rows, mode="clip") * (elements * self.growth_s)
            result += row_s
            result *= rows
        result += self.launch_s
        return result
