"""The cost of executions: the time that an execution of given rows and sizes takes.

`CostModel` predicts the time, `CostEvidence` fits a model to measured executions, and `LiveCost`
corrects a model while serving.

Each measured execution is one equation: the coefficients times their counts equal the measured
seconds. Equations are weighted by the time, so that errors are relative, and only their sums are
kept. Relative errors also suit clocks disturbed by other processes: a time that is ten times too
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
"""Smallest cost of an execution of any size: gathering, bookkeeping and scattering take at least
this long."""

MOST_GROWING: Final = 4096
"""Number of rows above which a row does not become more expensive."""

_ROOTS: Final = np.sqrt(np.arange(MOST_GROWING + 1))
_ONE: Final = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True)
class CostModel:
    """The time of an execution: launch + rows * elements * (a + b * elements + c * sqrt(rows)).

    `elements` is the size of one row. Its square is for operations on all pairs of positions, such
    as attention. The root of the rows is for batches that do not fit into caches: the more
    rows such a batch has, the longer each row takes. No coefficient is negative, so the time never
    decreases when rows or elements grow. Immutable.

    A graph that removes padding computes only the requests' elements, but all pairs of padded
    positions. For its executions `valid`, the number of the requests' elements, replaces
    rows * elements in all terms except the term of the squared elements.
    """

    launch_s: float
    """Seconds of every execution, independent of its size."""
    element_s: float
    """The coefficient a: seconds per element of a row."""
    element2_s: float
    """The coefficient b: seconds per squared element of a row."""
    terms: tuple[tuple[str, ...], ...]
    """The distinct tuples of axes of the inputs; if empty, a row counts as one element."""
    growth_s: float = 0.0
    """The coefficient c: seconds per element of a row, to be multiplied by the root of the rows."""

    def __str__(self) -> str:
        growth = f", growth {self.growth_s * 1e9:.3g} ns" if self.growth_s else ""
        return (
            f"launch {self.launch_s * 1e6:.0f} us, element {self.element_s * 1e9:.3g} ns, "
            f"squared element {self.element2_s * 1e9:.3g} ns{growth}"
        )

    def scaled(self, factor: float) -> CostModel:
        """Return the model of executions that take `factor` times as long."""
        return CostModel(
            self.launch_s * factor,
            self.element_s * factor,
            self.element2_s * factor,
            self.terms,
            self.growth_s * factor,
        )

    def elements(self, extents: Mapping[str, int]) -> int:
        """Return the elements of one row: the sum of each term's product of extents."""
        return elements_of(self.terms, extents)

    def seconds(self, rows: int, extents: Mapping[str, int], valid: int | None = None) -> float:
        """Return the predicted seconds of an execution of `rows` rows of `extents`."""
        elements = self.elements(extents)
        padded = rows * elements
        element_s = self.element_s
        if self.growth_s:
            element_s += self.growth_s * _ROOTS.item(min(rows, MOST_GROWING))
        computed = padded if valid is None else valid
        return self.launch_s + computed * element_s + padded * elements * self.element2_s

    def elements_many(self, extents: Mapping[str, Ints]) -> Ints:
        """Return `elements` for arrays that broadcast with each other."""
        products = [
            reduce(np.multiply, [extents[axis] for axis in term] or [_ONE]) for term in self.terms
        ]
        total: Ints = reduce(np.add, products or [_ONE])
        return total

    def seconds_many(
        self, rows: Ints, extents: Mapping[str, Ints], valid: Ints | None = None
    ) -> NDArray[np.float64]:
        """Return `seconds` for arrays that broadcast with each other."""
        return self.seconds_at(rows, self.elements_many(extents), valid)

    def seconds_at(
        self, rows: Ints, elements: Ints, valid: Ints | None = None
    ) -> NDArray[np.float64]:
        """Return `seconds` for arrays of rows and of the elements of one row."""
        if valid is not None:
            computed = valid * (self.element_s + _ROOTS.take(rows, mode="clip") * self.growth_s)
            pairs = np.multiply(rows, elements, dtype=np.float64) * elements
            return np.asarray(self.launch_s + computed + pairs * self.element2_s)
        # In place, as batches of many requests make large arrays. `row_s` does not depend on the
        # rows, so it is small if only `rows` is large.
        row_s = np.multiply(elements, self.element2_s, dtype=np.float64)
        row_s += self.element_s
        row_s *= elements
        if not self.growth_s:
            result: NDArray[np.float64] = row_s * rows
        else:
            # Clipped below too: the partitioner passes negative rows for runs that do not exist.
            result = _ROOTS.take(rows, mode="clip") * (elements * self.growth_s)
            result += row_s
            result *= rows
        result += self.launch_s
        return result


def elements_of(terms: Sequence[Sequence[str]], extents: Mapping[str, int]) -> int:
    """Return the sum of each term's product of extents; 1 without terms."""
    if not terms:
        return 1
    # Loops: for the one or two axes of most models, generators take longer than the products.
    total = 0
    for term in terms:
        product = 1
        for axis in term:
            product *= extents[axis]
        total += product
    return total


BATCH: Final = 64
"""Number of executions after which the model is fitted again, in 0.16 ms: 2.5 us per execution."""

MEMORY: Final = 1024.0
"""Number of executions of requests after which an execution counts a third of a new one."""

TRIAL: Final = 128
"""Number of consecutive executions of single requests after which two requests are tried together:
if together they take twice as long as one after the other, this costs less than 2 %."""

_TRUST: Final = 0.5
"""Factor on the weight of the calibration after a trial: measured trials take precedence."""

_LEAST_TRUST: Final = 1.0
"""Smallest weight of the calibration, in executions: it stays for sizes that are not executed."""

_TICK_S: Final = 1e-9  # for clocks too coarse to see an execution
_FOLLOW: Final = 0.5
"""The share of the drift of a batch of executions that the model follows immediately."""


class LiveCost:
    """A cost model that corrects itself from executions. Safe from any thread.

    The calibration always counts, so that sizes that are not executed keep their cost. But if the
    calibration leads to executions of single requests only, no measurement could contradict it. So
    from time to time two requests are tried together, and each trial reduces the weight of the
    calibration.

    Two effects are separated. Drift is common to all executions: the machine is slower or faster
    than before. The model follows it within a few hundred executions; comparisons stay the same.
    The remaining difference of each execution corrects the coefficients slowly. Deterministic for
    a given sequence of executions.
    """

    def __init__(
        self,
        cost: CostModel,
        calibration: CostEvidence | None = None,
        served: CostEvidence | None = None,
    ) -> None:
        """Start with a model.

        Args:
            cost: The initial model; it never changes without `calibration`.
            calibration: Evidence from executions at load.
            served: Evidence from executions of requests.
        """
        self._cost = cost
        self._calibration = calibration
        self._served = served or CostEvidence()
        self._base = self._initial = cost  # without drift
        self._drift = 0.0  # logarithm
        self._last: list[tuple[int, int, int, float]] = []
        self._alone = 0  # executions of one request since the last one of several

    @property
    def cost(self) -> CostModel:
        """The current model."""
        return self._cost

    @property
    def drift(self) -> float:
        """Ratio of the current times of executions to the times at calibration."""
        return math.exp(self._drift)

    @property
    def learned(self) -> bool:
        """True if executions of requests have corrected the model since it was created."""
        return self._base is not self._initial

    @property
    def trial_due(self) -> bool:
        """True if two requests that would be executed alone should be tried together."""
        return self._alone >= TRIAL

    def observe(
        self,
        rows: int,
        extents: Mapping[str, int],
        seconds: float,
        *,
        shared: bool,
        valid: int | None = None,
    ) -> bool:
        """Note an execution. Return True if `cost` has changed.

        Args:
            rows: Rows of the execution.
            extents: Its sizes.
            seconds: The measured time.
            shared: True if several requests shared the execution.
            valid: See CostModel.
        """
        if self._calibration is None:
            return False
        if not shared:
            self._alone += 1
        else:
            if self.trial_due and self._calibration.weight > _LEAST_TRUST:
                self._calibration = self._calibration.scaled(_TRUST)
            self._alone = 0
        # Without a lock: appending is atomic, and so is replacing the list.
        elements = elements_of(self._base.terms, extents)
        computed = rows * elements if valid is None else valid
        self._last.append((rows, elements, computed, seconds))
        if len(self._last) < BATCH:
            return False
        last, self._last = self._last, []
        self._learn(last, self._calibration)
        return True

    def _learn(self, last: list[tuple[int, int, int, float]], calibration: CostEvidence) -> None:
        rows, elements, valid, seconds = (np.array(column) for column in zip(*last, strict=True))
        seconds = np.maximum(seconds, _TICK_S)
        base = self._base
        shares = base.seconds_at(rows, elements, valid) / seconds
        # The factor with the least squared relative error, as for the coefficients. If it were the
        # median, for example, noise would drive factor and coefficients apart, batch by batch.
        factor = float(shares.sum() / np.square(shares).sum())
        self._drift += _FOLLOW * (math.log(factor) - self._drift)
        served = self._served.scaled(math.exp(-len(last) / MEMORY))
        # Divided by this batch's whole factor: any remaining drift would be attributed to the sizes
        # that happened to be executed in that time.
        served.add(rows, elements, seconds / factor, valid=valid)
        self._served = served
        self._base = _combined_model(calibration, served, base.terms)
        self._cost = self._base.scaled(self.drift)

    def as_json(self) -> dict[str, object] | None:
        """Return the evidence for `of_json`; None if it is too little, or without calibration."""
        if self._calibration is None:
            return None
        # An unreliable calibration is repeated at the next load, unless requests outweigh it.
        if self._calibration.weight + self._served.weight < BATCH:
            return None
        return {"calibration": self._calibration.as_json(), "served": self._served.as_json()}

    @classmethod
    def of_json(cls, data: Mapping[str, object], terms: tuple[tuple[str, ...], ...]) -> LiveCost:
        """Restore the result of `as_json` for a model of these terms. Raises ValueError."""
        calibration = CostEvidence.of_json(data.get("calibration"))
        if not calibration.weight:
            raise ValueError("found no executions, expected executions of a calibration")
        served = CostEvidence.of_json(data.get("served"))
        return cls(_combined_model(calibration, served, terms), calibration, served)


def _combined_model(
    calibration: CostEvidence, served: CostEvidence, terms: tuple[tuple[str, ...], ...]
) -> CostModel:
    known = calibration.scaled(1.0)
    known.merge(served)
    return known.model(terms)


_COEFFICIENTS: Final = 4  # launch, element, squared element, growth
_DEPENDENT: Final = 1e-11  # below this eigenvalue, the coefficients cannot be distinguished

_CHOICES: Final = [
    [np.array(list(combinations(range(present), count))) for count in range(1, present + 1)]
    for present in range(_COEFFICIENTS + 1)
]
"""For each number n of coefficients, the indexes in all choices of 1, 2, ..., n coefficients."""

Floats: TypeAlias = NDArray[np.float64]


class CostEvidence:
    """The sums over measured executions to which a model is fitted. Not thread-safe."""

    def __init__(self) -> None:
        self._products = np.zeros((_COEFFICIENTS, _COEFFICIENTS))
        self._sums = np.zeros(_COEFFICIENTS)
        self._weight = 0.0

    @property
    def weight(self) -> float:
        """Sum of the weights of all executions."""
        return self._weight

    def add(
        self,
        rows: Sequence[int] | NDArray[np.int64],
        elements: Sequence[int] | NDArray[np.int64],
        seconds: Sequence[float] | Floats,
        weight: float = 1.0,
        valid: NDArray[np.int64] | None = None,
    ) -> None:
        """Add executions.

        Args:
            rows: Rows of each execution.
            elements: Elements of one row of each execution.
            seconds: Measured time of each execution, above 0.
            weight: Weight of each execution.
            valid: See CostModel.
        """
        taken = np.array(seconds, np.float64)
        counts = _counts(np.array(rows, np.float64), np.array(elements, np.float64), valid)
        relative = counts / taken  # to the measured time
        self._products += weight * (relative @ relative.T)
        self._sums += weight * relative.sum(axis=1)
        self._weight += weight * len(taken)

    def merge(self, other: CostEvidence) -> None:
        """Add all executions of `other`."""
        self._products += other._products
        self._sums += other._sums
        self._weight += other._weight

    def scaled(self, share: float) -> CostEvidence:
        """Return evidence with `share` of this weight."""
        other = CostEvidence()
        other._products = self._products * share
        other._sums = self._sums * share
        other._weight = self._weight * share
        return other

    def model(self, terms: tuple[tuple[str, ...], ...]) -> CostModel:
        """Return the cost model with the least squared relative error and no negative coefficient.

        The launch time is at least LAUNCH_FLOOR_S.

        Args:
            terms: See CostModel.
        """
        lengths = np.sqrt(np.diagonal(self._products))
        present = [index for index in range(_COEFFICIENTS) if lengths[index] > 0]
        units = lengths[present]
        products = self._products[np.ix_(present, present)] / np.outer(units, units)
        sums = self._sums[present] / units
        best, most = np.zeros(_COEFFICIENTS), 0.0
        # The optimum with bounds is the optimum without bounds of the coefficients that are not 0.
        # Coefficients differ by orders of magnitude, so each is scaled to unit length. All choices
        # of equally many coefficients share one call of NumPy, as serving waits for this.
        for chosen in _CHOICES[len(present)]:
            matrices = products[chosen[:, :, None], chosen[:, None, :]]
            independent = np.linalg.eigvalsh(matrices)[:, 0] >= _DEPENDENT
            places = chosen[independent]
            own = sums[places]
            solutions = np.linalg.solve(matrices[independent], own[:, :, None])[:, :, 0]
            for at, right, solution in zip(places, own, solutions, strict=True):
                explained = float(right @ solution)  # the reduction of the squared error
                if explained > most and min(solution.tolist()) >= 0:
                    best, most = np.zeros(_COEFFICIENTS), explained
                    best[[present[place] for place in at]] = solution / units[at]
        launch_s, element_s, element2_s, growth_s = best.tolist()
        return CostModel(max(launch_s, LAUNCH_FLOOR_S), element_s, element2_s, terms, growth_s)

    def as_json(self) -> dict[str, object]:
        """Return the sums for `of_json`."""
        return {
            "products": self._products.tolist(),
            "sums": self._sums.tolist(),
            "weight": self._weight,
        }

    @classmethod
    def of_json(cls, data: object) -> CostEvidence:
        """Restore the result of `as_json`. Raises ValueError for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"found {type(data).__name__}, expected an object")
        evidence = cls()
        try:
            products = np.array(data.get("products"), np.float64)
            sums = np.array(data.get("sums"), np.float64)
            weight = float(data.get("weight", 0.0))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"found no sums of executions: {error}") from error
        whole = (products.shape, sums.shape) == (evidence._products.shape, evidence._sums.shape)
        # No sum is negative: they are sums of products of counts and times.
        if not (whole and weight >= 0 and _are_sums(products) and _are_sums(sums)):
            raise ValueError("found no sums of executions, expected numbers of at least 0")
        evidence._products, evidence._sums, evidence._weight = products, sums, weight
        return evidence


def _counts(rows: Floats, elements: Floats, valid: NDArray[np.int64] | None = None) -> Floats:
    """Return the count of each coefficient in executions: [coefficients, executions]."""
    work = rows * elements
    computed = work if valid is None else valid.astype(np.float64)
    roots = np.sqrt(np.minimum(rows, MOST_GROWING))
    return np.stack([np.ones_like(work), computed, work * elements, computed * roots])


def _are_sums(numbers: Floats) -> bool:
    return bool(np.isfinite(numbers).all() and (numbers >= 0).all())
