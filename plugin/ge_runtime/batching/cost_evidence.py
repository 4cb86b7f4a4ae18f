"""What is known of the cost of executions, in a few numbers, and the cost model that it says.

Each execution is one equation: the coefficients times what they count give the seconds it took.
Equations are weighted by the time, so that errors are relative, and only their sums are kept.
Relative errors suit clocks that others disturb, too: a time that is ten times too long weighs as
much as one that is twice too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.cost import LAUNCH_FLOOR_S, MOST_GROWING, CostModel

_COEFFICIENTS: Final = 4  # launch, element, squared element, growth
_DEPENDENT: Final = 1e-11  # below this share, what coefficients count cannot be told apart

Floats: TypeAlias = NDArray[np.float64]


class CostEvidence:
    """Sums over executions. Not safe from several threads at once."""

    def __init__(self) -> None:
        self._products = np.zeros((_COEFFICIENTS, _COEFFICIENTS))
        self._sums = np.zeros(_COEFFICIENTS)
        self._weight = 0.0

    @property
    def weight(self) -> float:
        """Of all executions, each as it was given."""
        return self._weight

    def add(
        self,
        rows: Sequence[int] | NDArray[np.int64],
        elements: Sequence[int] | NDArray[np.int64],
        seconds: Sequence[float] | Floats,
        weight: float = 1.0,
    ) -> None:
        """Count executions, `weight` for each.

        rows; elements: of one row; seconds: that it took, more than 0.
        """
        taken = np.array(seconds, np.float64)
        # What one second of a coefficient explains, relative to the time that was taken.
        counted = _counted(np.array(rows, np.float64), np.array(elements, np.float64)) / taken
        self._products += weight * (counted @ counted.T)
        self._sums += weight * counted.sum(axis=1)
        self._weight += weight * len(taken)

    def merge(self, other: CostEvidence) -> None:
        """Add all that the other knows."""
        self._products += other._products
        self._sums += other._sums
        self._weight += other._weight

    def scale(self, share: float) -> None:
        """Let everything known so far count `share` of what it did."""
        self._products *= share
        self._sums *= share
        self._weight *= share

    def copy(self) -> CostEvidence:
        """Another of the same content."""
        other = CostEvidence()
        other.merge(self)
        return other

    def model(self, terms: tuple[tuple[str, ...], ...]) -> CostModel:
        """The cost model of least squared relative error, none of its coefficients negative.

        terms: see CostModel. The launch is LAUNCH_FLOOR_S at least.
        """
        lengths = np.sqrt(np.diagonal(self._products))
        present = [index for index in range(_COEFFICIENTS) if lengths[index] > 0]
        best, most = np.zeros(_COEFFICIENTS), 0.0
        # The optimum with bounds is the optimum without bounds of those coefficients that are not
        # 0. They differ by many orders of magnitude: each is scaled to unit length.
        for count in range(1, len(present) + 1):
            for chosen in map(list, combinations(present, count)):
                units = lengths[chosen]
                products = self._products[np.ix_(chosen, chosen)] / np.outer(units, units)
                if np.linalg.eigvalsh(products)[0] < _DEPENDENT:
                    continue
                sums = self._sums[chosen] / units
                solution = np.linalg.solve(products, sums)
                explained = float(sums @ solution)  # of the optimum, what it leaves of the error
                if (solution >= 0).all() and explained > most:
                    best, most = np.zeros(_COEFFICIENTS), explained
                    best[chosen] = solution / units
        launch_s, element_s, element2_s, growth_s = best.tolist()
        return CostModel(max(launch_s, LAUNCH_FLOOR_S), element_s, element2_s, terms, growth_s)

    def as_json(self) -> dict[str, object]:
        """All of it, for `of_json`."""
        return {
            "products": self._products.tolist(),
            "sums": self._sums.tolist(),
            "weight": self._weight,
        }

    @classmethod
    def of_json(cls, data: object) -> CostEvidence:
        """What `as_json` gave. Raises ValueError for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"found {type(data).__name__}, expected an object")
        evidence = cls()
        try:
            products = np.array(data.get("products"), np.float64)
            sums = np.array(data.get("sums"), np.float64)
            weight = float(data.get("weight", 0.0))
        except (TypeError, ValueError) as error:
            raise ValueError(f"found no sums of executions: {error}") from error
        whole = (products.shape, sums.shape) == (evidence._products.shape, evidence._sums.shape)
        # None is negative: they are sums of products of counts and times.
        if not (whole and weight >= 0 and _sound(products) and _sound(sums)):
            raise ValueError("found no sums of executions, expected numbers of at least 0")
        evidence._products, evidence._sums, evidence._weight = products, sums, weight
        return evidence


def _counted(rows: Floats, elements: Floats) -> Floats:
    """What each coefficient counts in executions of these sizes: [coefficients, executions]."""
    work = rows * elements
    roots = np.sqrt(np.minimum(rows, MOST_GROWING))
    return np.stack([np.ones_like(work), work, work * elements, work * roots])


def _sound(numbers: Floats) -> bool:
    return bool(np.isfinite(numbers).all() and (numbers >= 0).all())
