"""The cost of executions: the seconds that one of given rows and sizes takes.

`CostModel` predicts it, `CostEvidence` fits one to what executions took, and `LiveCost` corrects it
while serving.

Each execution that was timed is one equation: the coefficients times what they count give the
seconds it took. Equations are weighted by the time, so that errors are relative, and only their
sums are kept. Relative errors suit clocks that others disturb, too: a time that is ten times too
long weighs as much as one that is twice too long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Final, TypeAlias

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


BATCH: Final = 64
"""Executions after which the model is fitted anew: 0.3 ms, which is 5 us for each."""

MEMORY: Final = 1024.0
"""Executions that serve after which an older one counts a third of a new one."""

TRIAL: Final = 128
"""Executions of single requests, one after the other, after which two requests are tried together:
if they take twice as long as alone it costs less than 2 %."""

_TRUST: Final = 0.5
"""Of what the calibration counted, what it counts after a trial: what was tried goes before it."""

_LEAST_TRUST: Final = 1.0
"""The executions that it counts as at least, for sizes that are never executed."""

_TICK_S: Final = 1e-9  # for clocks too coarse to see an execution
_FOLLOW: Final = 0.5
"""Of the drift that a batch of executions shows, how much is followed at once."""


class LiveCost:
    """A cost model and what corrects it: sums, and the last executions. Any thread.

    The calibration counts for ever, so that sizes which are not executed keep their cost. Only if
    it has all requests executed alone nothing would ever contradict it: so now and then two are
    tried together, and with each trial it counts less.

    Two things are told apart. Drift is common to all executions: the machine is slower or faster
    than it was, which is followed within a few hundred executions, and changes no comparison. What
    is left of each execution corrects the coefficients, slowly. Deterministic, given the executions
    in their order.
    """

    def __init__(
        self,
        cost: CostModel,
        calibration: CostEvidence | None = None,
        served: CostEvidence | None = None,
    ) -> None:
        """cost: to begin with, and for ever if nothing else is given.

        calibration, served: what is known from executions at load, and from those that served.
        """
        self._cost = cost
        self._calibration = calibration
        self._served = served or CostEvidence()
        self._base = self._begun = cost  # at no drift
        self._drift = 0.0  # logarithm
        self._last: list[tuple[int, int, float]] = []
        self._alone = 0  # executions of one request, since the last one of several

    @property
    def cost(self) -> CostModel:
        """The model as it is now."""
        return self._cost

    @property
    def drift(self) -> float:
        """How many times as long executions take now as when they were calibrated."""
        return math.exp(self._drift)

    @property
    def learned(self) -> bool:
        """Whether executions that served have corrected it since it was made."""
        return self._base is not self._begun

    @property
    def trial_due(self) -> bool:
        """Whether requests are to be tried together that would all be executed alone."""
        return self._alone >= TRIAL

    def observe(
        self, rows: int, extents: Mapping[str, int], seconds: float, *, shared: bool
    ) -> bool:
        """An execution of this size took so long; True if `cost` is another now.

        shared: by several requests.
        """
        if self._calibration is None:
            return False
        if not shared:
            self._alone += 1
        else:
            if self.trial_due and self._calibration.weight > _LEAST_TRUST:
                self._calibration = self._calibration.scaled(_TRUST)
            self._alone = 0
        # No lock: appending is one step, and so is taking the list away.
        self._last.append((rows, self._base.elements(extents), seconds))
        if len(self._last) < BATCH:
            return False
        last, self._last = self._last, []
        self._learn(last, self._calibration)
        return True

    def _learn(self, last: list[tuple[int, int, float]], calibration: CostEvidence) -> None:
        rows, elements, seconds = (np.array(column) for column in zip(*last, strict=True))
        seconds = np.maximum(seconds, _TICK_S)
        base = self._base
        shares = base.seconds_at(rows, elements) / seconds
        # The factor of least squared relative error, as the coefficients are fitted: with another
        # one, say the median, noise would push factor and coefficients apart, batch after batch.
        factor = float(shares.sum() / np.square(shares).sum())
        self._drift += _FOLLOW * (math.log(factor) - self._drift)
        served = self._served.scaled(math.exp(-len(last) / MEMORY))
        # By the whole of this batch's own factor: what is not divided out here, coefficients would
        # take for a property of the sizes that happened to run meanwhile.
        served.add(rows, elements, seconds / factor)
        self._served = served
        self._base = _model(calibration, served, base.terms)
        self._cost = self._base.scaled(self.drift)

    def as_json(self) -> dict[str, object] | None:
        """What is known, for `of_json`; None if it is too little, or the cost was given."""
        if self._calibration is None:
            return None
        # A calibration that was not believed is to be repeated, unless serving has replaced it.
        if self._calibration.weight + self._served.weight < BATCH:
            return None
        return {"calibration": self._calibration.as_json(), "served": self._served.as_json()}

    @classmethod
    def of_json(cls, data: Mapping[str, object], terms: tuple[tuple[str, ...], ...]) -> LiveCost:
        """What `as_json` gave, of a model of these terms. Raises ValueError for anything else."""
        calibration = CostEvidence.of_json(data.get("calibration"))
        if not calibration.weight:
            raise ValueError("found no executions, expected those of a calibration")
        served = CostEvidence.of_json(data.get("served"))
        return cls(_model(calibration, served, terms), calibration, served)


def _model(
    calibration: CostEvidence, served: CostEvidence, terms: tuple[tuple[str, ...], ...]
) -> CostModel:
    known = calibration.scaled(1.0)
    known.merge(served)
    return known.model(terms)


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

    def scaled(self, share: float) -> CostEvidence:
        """The same, counting `share` of what it does."""
        other = CostEvidence()
        other._products = self._products * share
        other._sums = self._sums * share
        other._weight = self._weight * share
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
