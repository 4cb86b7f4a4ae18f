"""The cost model while serving: corrected by what executions take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.cost_evidence import CostEvidence

BATCH: Final = 64
"""Executions after which the model is fitted anew: 0.3 ms, which is 5 us for each."""

MEMORY: Final = 1024.0
"""Executions that serve after which an older one counts a third of a new one."""

_TICK_S: Final = 1e-9  # for clocks too coarse to see an execution
_FOLLOW: Final = 0.5
"""Of the drift that a batch of executions shows, how much is followed at once."""


class LiveCost:
    """A cost model and what corrects it: sums, and the last executions. Any thread.

    The calibration counts for ever, so that sizes which are not executed keep their cost.

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

    def observe(self, rows: int, extents: Mapping[str, int], seconds: float) -> bool:
        """An execution of this size took so long; True if `cost` is another now."""
        if self._calibration is None:
            return False
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
        served = self._served.copy()
        served.scale(math.exp(-len(last) / MEMORY))
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
    known = calibration.copy()
    known.merge(served)
    return known.model(terms)
