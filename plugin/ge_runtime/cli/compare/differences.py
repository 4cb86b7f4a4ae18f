"""The difference between a tensor of a device and the CPU's."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ge_runtime.specs import Array


class Difference(NamedTuple):
    """The difference between two arrays of one tensor."""

    cosine: float
    """Cosine of the angle between them; NaN for other types than floating point."""
    relative: float
    """Norm of the difference, divided by the norm of the CPU's array. For other types than floating
    point, the share of different elements. Infinite if shapes or dtypes differ, or if NaN or an
    infinity meets another value."""
    largest: float
    """Largest difference of two elements; NaN for booleans."""

    def exceeds(self, limit: float) -> bool:
        """Return whether `relative` is above the limit or NaN."""
        return not self.relative <= limit


UNKNOWN = Difference(math.nan, math.nan, math.nan)


def difference(found: Array, expected: Array) -> Difference:
    """Compare two arrays. NaN equals NaN, and an infinity equals itself."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return Difference(math.nan, math.inf, math.inf)
    if found.size == 0:
        return Difference(1.0, 0.0, 0.0)
    if found.dtype.kind != "f":
        share = float(np.mean(found != expected))
        if found.dtype.kind == "b":
            return Difference(math.nan, share, math.nan)
        errors = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        return Difference(math.nan, share, float(errors.max()))
    one, other = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    finite = np.isfinite(one) & np.isfinite(other)
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    if not (finite | equal).all():
        return Difference(_cosine(one[finite], other[finite]), math.inf, math.inf)
    one, other = one[finite], other[finite]
    errors = np.abs(one - other)
    norm = float(np.linalg.norm(other))
    distance = float(np.linalg.norm(errors))
    relative = distance / norm if norm else (math.inf if distance else 0.0)
    return Difference(_cosine(one, other), relative, float(errors.max(initial=0.0)))


def _cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if norms:
        return float(np.dot(one, other)) / norms
    return 1.0 if np.array_equal(one, other) else 0.0
