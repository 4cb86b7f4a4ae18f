"""Elements of every type: random ones, poison, and how far two are apart, and by rounding alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import Array, DType, Tensors, TensorSpec

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


TOLERANCES: Final = {DType.FP64: 1e-5, DType.FP32: 1e-5, DType.FP16: 4e-3, DType.BF16: 3e-2}
"""How far floats may be apart, relative to the expected value plus 1.

1e-5 is the promise. Where a type's own rounding is coarser, it is four times that rounding:
2**-10 for FP16, 2**-7 for BF16. All other types agree in every bit.
"""

_INTEGERS: Final = (0.0, 10.0)
_FLOATS: Final = (-1.0, 1.0)


def range_of(spec: TensorSpec, given: tuple[float, float] | None) -> tuple[float, float]:
    """The values of a tensor's elements, low to high: what was given, or small numbers.

    Raises RuntimeFault unless the type has elements between the two.
    """
    if not _is_number(spec.dtype):
        return 0.0, 2.0
    if given is None:
        return _INTEGERS if spec.dtype.is_integer else _FLOATS
    low, high = given
    largest = spec.dtype.largest
    least = int(np.iinfo(spec.dtype.numpy).min) if spec.dtype.is_integer else -largest
    whole = spec.dtype.is_integer
    if not least <= low < high <= largest + whole or (whole and (low % 1 or high % 1)):
        kind = "whole numbers" if whole else "numbers"
        raise RuntimeFault(
            f"range of '{spec.name}': found {low:g}:{high:g}, expected two {kind} of type "
            f"{spec.dtype.value}, the lower one first"
        )
    return low, high


def random_elements(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], within: tuple[float, float]
) -> Array:
    """An array of elements from low to high; high excluded for integers.

    Of BOOL both values; of BYTES short texts, of which some are empty.
    """
    low, high = within
    if dtype is DType.BYTES:
        texts = [rng.bytes(length) for length in rng.integers(0, 6, math.prod(shape))]
        return np.fromiter(texts, np.object_, len(texts)).reshape(shape)
    if dtype is DType.BOOL or dtype.is_integer:
        values = rng.integers(int(low), int(high), shape, _WIDEST.get(dtype, np.dtype(np.int64)))
        return values.astype(dtype.numpy)
    floats = rng.uniform(low, high, shape).astype(
        np.float32 if dtype is DType.BF16 else dtype.numpy
    )
    return _upper_halves(floats) if dtype is DType.BF16 else floats


def neighbours(rng: np.random.Generator, dtype: DType, data: Array) -> Array | None:
    """Floats that are each the next one up or down of `data`; None for other types."""
    if dtype is DType.BF16:  # bits: one more or less is the next one, but at 0
        steps = np.where(data & 0x7FFF, rng.integers(0, 2, data.shape) * 2 - 1, 0)
        return (data.astype(np.int64) + steps).astype(np.uint16)
    if dtype not in TOLERANCES:
        return None
    towards = np.where(rng.random(data.shape) < 0.5, -math.inf, math.inf)
    moved: Array = np.nextafter(data, towards.astype(data.dtype))
    return moved


def poison_of(dtype: DType) -> np.generic:
    """NaN of floats, the largest of integers: what no answer may show. Not for BYTES."""
    if dtype is DType.BOOL:
        return dtype.scalar(True)
    return dtype.scalar(dtype.largest if dtype.is_integer else math.nan)


@dataclass(frozen=True, slots=True)
class Difference:
    """How two arrays of equal shape differ."""

    count: int
    """The elements that differ."""
    size: int
    """All elements."""
    first: tuple[int, ...]
    """The index of the first that differs."""
    found: object
    """That element, and what it should be."""
    expected: object
    absolute: float
    """The largest distance among those that differ; NaN for what has no distance."""
    relative: float
    """The largest distance divided by the expected value."""

    def __str__(self) -> str:
        return (
            f"{self.count:,} of {self.size:,} element(s) differ, the first at {list(self.first)}: "
            f"found {self.found}, expected {self.expected}; at most {self.absolute:.3g} apart, "
            f"{self.relative:.3g} relative"
        )


def compare(
    dtype: DType,
    found: Array,
    expected: Array,
    *,
    tolerance: float | None = None,
    where: NDArray[np.bool_] | None = None,
) -> Difference | None:
    """How `found` differs from `expected`, of one shape; None if they agree.

    NaN agrees with NaN. tolerance: of floats, in place of TOLERANCES. where: broadcasts with the
    arrays; elements at which it is false are left out.
    """
    found, expected = readable(dtype, found), readable(dtype, expected)
    differ = np.asarray(found != expected)
    apart = np.full(found.shape, math.nan)
    if _is_number(dtype):
        with np.errstate(invalid="ignore"):
            apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    if dtype in TOLERANCES:
        allowed = TOLERANCES[dtype] if tolerance is None else tolerance
        # Written so that a NaN on one side is never near; infinities are near only if equal.
        near = apart <= allowed * (1 + np.abs(np.where(np.isinf(expected), 0, expected)))
        differ &= ~near & ~(np.isnan(found) & np.isnan(expected))
    if where is not None:
        differ &= where
    if not differ.any():
        return None
    first = tuple(int(index) for index in np.argwhere(differ)[0])
    with np.errstate(all="ignore"):
        relative = apart / np.abs(expected.astype(np.float64)) if _is_number(dtype) else apart
    return Difference(
        count=int(differ.sum()),
        size=differ.size,
        first=first,
        found=found[first],
        expected=expected[first],
        absolute=_largest(apart[differ]),
        relative=_largest(relative[differ]),
    )


_WIDEST: Final = {DType.UINT64: np.dtype(np.uint64)}
"""Integers that INT64 does not hold."""


def _is_number(dtype: DType) -> bool:
    return dtype not in (DType.BOOL, DType.BYTES)


def _largest(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else math.nan


def readable(dtype: DType, array: Array) -> Array:
    """The array as NumPy can compute with it: BF16, which is bits, as FP32."""
    if dtype is DType.BF16:
        widened: Array = (array.astype(np.uint32) << 16).view(np.float32)
        return widened
    return array


def _upper_halves(floats: Array) -> Array:
    """FP32 as BF16, cut off: any random number is as good as its neighbour."""
    bits: Array = (floats.view(np.uint32) >> 16).astype(np.uint16)
    return bits
