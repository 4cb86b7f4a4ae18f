"""What an execution costs: a model of three coefficients in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.gears import Ints

_ONE: Final = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True)
class CostModel:
    """The time of an execution: launch + rows * (a * elements + b * elements^2).

    The elements are those of one row. The square stands for what looks at all pairs of positions,
    as attention does. No coefficient is negative.
    """

    launch_s: float
    """What every execution costs, however small."""
    element_s: float
    """Per element of a row."""
    element2_s: float
    """Per squared element of a row."""
    terms: tuple[tuple[str, ...], ...]
    """The distinct tuples of axes that inputs have; none: a row counts as one element."""

    def __str__(self) -> str:
        return (
            f"launch {self.launch_s * 1e6:.0f} us, element {self.element_s * 1e9:.3g} ns, "
            f"squared element {self.element2_s * 1e9:.3g} ns"
        )

    def elements(self, extents: Mapping[str, int]) -> int:
        """The elements of one row: for each term the product of its extents, added up."""
        if not self.terms:
            return 1
        return sum(math.prod(extents[axis] for axis in term) for term in self.terms)

    def seconds(self, rows: int, extents: Mapping[str, int]) -> float:
        """The time of an execution of `rows` rows of `extents`, in seconds."""
        elements = self.elements(extents)
        return self.launch_s + rows * ((self.element_s + self.element2_s * elements) * elements)

    def elements_many(self, extents: Mapping[str, Ints]) -> Ints:
        """`elements` for arrays that broadcast with each other."""
        products = [
            reduce(np.multiply, [extents[axis] for axis in term] or [_ONE]) for term in self.terms
        ]
        total: Ints = reduce(np.add, products or [_ONE])
        return total

    def seconds_many(self, rows: Ints, extents: Mapping[str, Ints]) -> NDArray[np.float64]:
        """`seconds` for arrays that broadcast with each other."""
        # In place, because batches of many requests make large arrays.
        elements = self.elements_many(extents)
        row_s = np.multiply(elements, self.element2_s, dtype=np.float64)
        row_s += self.element_s
        row_s *= elements
        result: NDArray[np.float64] = row_s * rows
        result += self.launch_s
        return result
