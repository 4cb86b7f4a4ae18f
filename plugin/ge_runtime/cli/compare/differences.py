"""How far a tensor of a device is from the CPU's."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ge_runtime.specs import Array


class Difference(NamedTuple):
    """Of two arrays of one tensor."""

    cosine: float
    """Of the angle between them; nan for what is no floating-point number."""
    relative: float
    """The norm of the difference over the CPU's; of other types the share of different elements.

    Infinite where shapes differ, or one has a number and the other NaN or an infinity."""
    largest: float
    """The largest difference of two elements; nan for truth values."""

    def beyond(self, limit: float) -> bool:
        """Whether that is more than is allowed."""
        return not self.relative <= limit


def difference(found: Array, expected: Array) -> Difference:
    """Elements that are NaN, or the same infinity, on both sides are equal."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return Difference(math.nan, math.inf, math.inf)
    if found.size == 0:
        return Difference(1.0, 0.0, 0.0)
    if found.dtype.kind != "f":
        share = float(np.mean(found != expected))
        if found.dtype.kind == "b":
            return Difference(math.nan, share, math.nan)
        apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        return Difference(math.nan, share, float(apart.max()))
    one, other = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    finite = np.isfinite(one) & np.isfinite(other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    if not (finite | same).all():
        return Difference(_cosine(one[finite], other[finite]), math.inf, math.inf)
    one, other = one[finite], other[finite]
    apart = np.abs(one - other)
    norm = float(np.linalg.norm(other))
    distance = float(np.linalg.norm(apart))
    relative = distance / norm if norm else (math.inf if distance else 0.0)
    return Difference(_cosine(one, other), relative, float(apart.max(initial=0.0)))


def _cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if norms:
        return float(np.dot(one, other)) / norms
    return 1.0 if np.array_equal(one, other) else 0.0
