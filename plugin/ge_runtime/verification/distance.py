"""Differences between answers, and how much of a difference is rounding or chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.specs import Array, DType, Tensors, TensorSpec
from ge_runtime.verification.elements import readable

TOLERANCES: Final = {DType.FP64: 1e-5, DType.FP32: 1e-5, DType.FP16: 4e-3, DType.BF16: 3e-2}
"""Allowed difference of floats, relative to the expected value plus 1.

1e-5 is promised. A type with coarser rounding has four times its rounding, which is 2**-10 for FP16
and 2**-7 for BF16. Elements of other types must be equal.
"""

NUDGE_MARGIN: Final = 64
"""Another shape may change an answer by this many times the change that nudged inputs cause. Nudged
inputs change one rounding, that of the inputs, and a graph has many."""

ROWS_MARGIN: Final = 4
"""Another shape may change an answer by this many times the change that more rows cause. More rows
change all roundings of a graph."""

_ROUNDING_MOST: Final = 100
"""A change that more rows cause is not rounding beyond this many times the tolerance."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one output of two answers, shown at the element where it is largest."""

    output: str
    place: tuple[int, ...]
    """The index of the element with the largest distance; empty if the shapes differ."""
    found: object
    """The element at `place`; the shape if the shapes differ."""
    expected: object
    distance: float
    """Absolute distance. Infinite if the shapes differ, for BYTES, or if one element is a number
    and the other is NaN."""
    count: int
    """Number of elements that differ."""
    size: int
    """Number of all elements."""

    def __str__(self) -> str:
        if isinstance(self.found, list):
            return f"output '{self.output}': found shape {self.found}, expected {self.expected}"
        return (
            f"output '{self.output}': found {self.found} at {list(self.place)}, expected "
            f"{self.expected}, distance {self.distance:.3g}; {self.count:,} of {self.size:,} "
            "element(s) differ"
        )


def compare(
    spec: TensorSpec,
    found: Array,
    expected: Array,
    *,
    tolerance: float = 0.0,
    where: NDArray[np.bool_] | None = None,
) -> Difference | None:
    """Return the difference of two arrays of one output, or None. NaN equals NaN.

    Args:
        spec: The output.
        found: An array of the output's type.
        expected: An array of the same type.
        tolerance: Allowed difference of floats, relative to the expected value plus 1. With 0, and
            for all other types, elements must be equal.
        where: A mask that broadcasts with the arrays; elements where it is false do not count.
    """
    if found.shape != expected.shape:
        shapes = (list(found.shape), list(expected.shape))
        return Difference(spec.name, (), *shapes, math.inf, found.size, found.size)
    found, expected = readable(spec.dtype, found), readable(spec.dtype, expected)
    differ = np.asarray((found != expected) & ~((found != found) & (expected != expected)))
    if where is not None:
        differ &= where
    if not differ.any():
        return None
    distances = _distances(spec.dtype, found, expected)
    if spec.dtype in TOLERANCES:
        # Distances to NaN and infinity are infinite, so no tolerance allows them.
        allowed = tolerance * (1 + np.abs(np.where(np.isfinite(expected), expected, 0)))
        differ &= distances > allowed
        if not differ.any():
            return None
    distances = np.where(differ, distances, -1.0)
    place = tuple(int(index) for index in np.unravel_index(int(distances.argmax()), found.shape))
    return Difference(
        spec.name,
        place,
        found[place],
        expected[place],
        float(distances[place]),
        int(differ.sum()),
        differ.size,
    )


def compare_all(specs: Sequence[TensorSpec], found: Tensors, expected: Tensors) -> list[Difference]:
    """Return the difference of every output that is not equal."""
    each = (compare(spec, found[spec.name], expected[spec.name]) for spec in specs)
    return [difference for difference in each if difference is not None]


def _distances(dtype: DType, found: Array, expected: Array) -> NDArray[np.float64]:
    if dtype is DType.BYTES:
        return np.full(found.shape, math.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return np.where(np.isnan(distances), math.inf, distances)


def beyond_chance(
    specs: Sequence[TensorSpec],
    differences: Sequence[Difference],
    repeated: Callable[[], Sequence[Tensors]],
) -> tuple[Difference, float] | None:
    """Find a difference of more than twice the distance between equal executions.

    Engines that sum in no fixed order differ from execution to execution. `repeated` executes the
    same requests at the same shapes several times; it is called only if there is a difference.

    Returns the first difference that chance does not explain, and the largest distance that equal
    executions showed in its output; None if chance explains all.
    """
    if not differences:
        return None
    first, *others = repeated()
    by_chance: dict[str, float] = {}
    for other in others:
        for each in compare_all(specs, other, first):
            by_chance[each.output] = max(by_chance.get(each.output, 0.0), each.distance)
    for difference in differences:
        chance = by_chance.get(difference.output, 0.0)
        if difference.distance > 2 * chance:
            return difference, chance
    return None


@dataclass(frozen=True, slots=True)
class Variants:
    """Answers to one request that differ only by rounding."""

    nudged: Sequence[Tensors]
    """Answers to the request with the floats of its inputs moved to their neighbours."""
    more_rows: Sequence[Tensors]
    """Answers to the request in the same row of an execution with more rows of the same size."""


class Rounding:
    """Bounds on how far rounding changes the answer to one request, measured at first use."""

    def __init__(
        self, specs: Sequence[TensorSpec], answer: Tensors, variants: Callable[[], Variants]
    ) -> None:
        """Bound the rounding of `answer`, the answer to a request that is executed alone."""
        self._specs = {spec.name: spec for spec in specs}
        self._answer = answer
        self._measure = variants

    def seen(self, output: str) -> float:
        """Return the largest distance between the answer and its variants."""
        return max(self._nudged(output), self._more_rows(output))

    def allowed(self, output: str) -> float:
        """Return the distance by which another shape may change the output.

        It is the measured distance times its margin, but at least the tolerance.
        """
        tolerance = self.tolerance(output)
        rows = self._more_rows(output)
        rows = rows if rows <= _ROUNDING_MOST * tolerance else 0.0
        return max(tolerance, NUDGE_MARGIN * self._nudged(output), ROWS_MARGIN * rows)

    def tolerance(self, output: str) -> float:
        """Return the tolerance of the output's type times the largest number of the output."""
        dtype = self._specs[output].dtype
        if dtype not in TOLERANCES:
            return 0.0
        numbers = np.abs(readable(dtype, self._answer[output]).astype(np.float64))
        return TOLERANCES[dtype] * float(np.max(numbers[np.isfinite(numbers)], initial=0.0))

    @cached_property
    def _variants(self) -> Variants:
        return self._measure()

    def _nudged(self, output: str) -> float:
        return self._largest(output, self._variants.nudged)

    def _more_rows(self, output: str) -> float:
        return self._largest(output, self._variants.more_rows)

    def _largest(self, output: str, variants: Sequence[Tensors]) -> float:
        differences = (
            compare(self._specs[output], variant[output], self._answer[output])
            for variant in variants
        )
        return max([each.distance for each in differences if each is not None], default=0.0)
