"""How far answers are apart, and how far arithmetic alone moves them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.specs import Array, Tensors, TensorSpec
from ge_runtime.verification.elements import TOLERANCES, readable

NUDGE_MARGIN: Final = 64
"""A change of shapes may move answers by this many times what nudged inputs move them by: the last
bits of the inputs are one rounding, and a graph has many."""

ROWS_MARGIN: Final = 4
"""And by this many times what more rows move them by, which are all the roundings of a graph."""

_ROUNDING_MOST: Final = 100
"""Times the promise: what more rows move an answer by beyond that is no rounding."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Where two answers are the furthest apart, in the output where that says most."""

    output: str
    place: tuple[int, ...]
    found: object
    expected: object
    distance: float
    """Infinite where the shapes differ, or one is a number and the other is none."""

    def __str__(self) -> str:
        return (
            f"output '{self.output}' has {self.found} at {list(self.place)} where {self.expected} "
            f"is expected, {self.distance:.3g} apart"
        )


def furthest(spec: TensorSpec, found: Array, expected: Array) -> Apart | None:
    """The largest distance between two arrays of one output; None if they are equal in all bits.

    NaN is equal to NaN.
    """
    if found.shape != expected.shape:
        shapes = (list(found.shape), list(expected.shape))
        return Apart(spec.name, (), *shapes, math.inf)
    one, other = readable(spec.dtype, found), readable(spec.dtype, expected)
    differ = np.asarray((one != other) & ~((one != one) & (other != other)))
    if not differ.any():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    apart = np.where(differ, np.where(np.isnan(apart), math.inf, apart), 0.0)
    place = tuple(int(index) for index in np.unravel_index(int(apart.argmax()), apart.shape))
    return Apart(spec.name, place, one[place].item(), other[place].item(), float(apart.max()))


@dataclass(frozen=True, slots=True)
class Variants:
    """Answers to one request that arithmetic alone makes differ."""

    nudged: Sequence[Tensors]
    """With floats of the inputs moved to their neighbours."""
    more_rows: Sequence[Tensors]
    """In the same place of an execution of more rows of the same size."""


class Rounding:
    """How far arithmetic alone moves the answers to one request, measured when first asked for."""

    def __init__(
        self, specs: Sequence[TensorSpec], answer: Tensors, variants: Callable[[], Variants]
    ) -> None:
        """answer: of the request by itself. variants: executes it again."""
        self._specs = {spec.name: spec for spec in specs}
        self._answer = answer
        self._measure = variants
        self._variants: Variants | None = None

    def seen(self, output: str) -> float:
        """The largest distance between the answer and its variants."""
        return max(self._nudged(output), self._more_rows(output))

    def allowed(self, output: str) -> float:
        """What a change of shapes may move the output by: what was seen, with its margins.

        At least the promise for its type, relative to the largest number in it.
        """
        promise = self._promise(output)
        rows = self._more_rows(output)
        rows = rows if rows <= _ROUNDING_MOST * promise else 0.0
        return max(promise, NUDGE_MARGIN * self._nudged(output), ROWS_MARGIN * rows)

    def _promise(self, output: str) -> float:
        dtype = self._specs[output].dtype
        if dtype not in TOLERANCES:
            return 0.0
        numbers = np.abs(readable(dtype, self._answer[output]).astype(np.float64))
        return TOLERANCES[dtype] * float(np.max(numbers[np.isfinite(numbers)], initial=0.0))

    def _nudged(self, output: str) -> float:
        return self._largest(output, self._measured().nudged)

    def _more_rows(self, output: str) -> float:
        return self._largest(output, self._measured().more_rows)

    def _measured(self) -> Variants:
        if self._variants is None:
            self._variants = self._measure()
        return self._variants

    def _largest(self, output: str, variants: Sequence[Tensors]) -> float:
        differences = (
            furthest(self._specs[output], variant[output], self._answer[output])
            for variant in variants
        )
        return max([each.distance for each in differences if each is not None], default=0.0)


def apart(specs: Sequence[TensorSpec], found: Tensors, expected: Tensors) -> list[Apart]:
    """Every output in which two answers differ in any bit; not for BYTES."""
    differences = (furthest(spec, found[spec.name], expected[spec.name]) for spec in specs)
    return [difference for difference in differences if difference is not None]
