"""Random tensor elements of every type: value ranges, drawing, neighbouring floats and poison.

Shared by the load check and by the conformance suite, which differ only in the sizes they choose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import numpy as np

from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import Array, DType, Tensors, TensorSpec

ElementRange: TypeAlias = tuple[float, float]
"""The lowest and the highest value of a tensor's elements; the highest is excluded for integers."""

_BOOLEANS: Final = (0.0, 2.0)
_INTEGERS: Final = (0.0, 10.0)
_FLOATS: Final = (-1.0, 1.0)
_WIDEST: Final = {DType.UINT64: np.dtype(np.uint64)}
"""Integer types whose values do not fit into INT64."""


def element_ranges(
    config: RuntimeConfig,
    specs: Iterable[TensorSpec],
    given: Mapping[str, ElementRange] | None = None,
    *,
    integers: ElementRange | None = None,
) -> dict[str, ElementRange]:
    """Return the element range of each tensor, by name.

    Ranges in `given` take precedence over the parameters `range.<input>`. `integers` is the range
    of integer and BOOL tensors that have no other range.

    Raises:
        RuntimeFault: The type of a tensor cannot represent its range.
    """
    ranges: dict[str, ElementRange] = {}
    for spec in specs:
        own = config.ranges.get(spec.name)
        whole = spec.dtype.is_integer or spec.dtype is DType.BOOL
        default = own.span(spec.dtype) if own else integers if whole else None
        ranges[spec.name] = range_of(spec, (given or {}).get(spec.name, default))
    return ranges


def range_of(spec: TensorSpec, given: ElementRange | None) -> ElementRange:
    """Return `given`, or by default a range of small numbers.

    Raises:
        RuntimeFault: The tensor's type has no elements within `given`.
    """
    if not is_number(spec.dtype):
        return _BOOLEANS
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
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], within: ElementRange
) -> Array:
    """Return an array of `shape` with uniformly distributed elements of type `dtype`.

    BOOL elements have both values; BYTES elements are texts of 0 to 5 bytes.
    """
    low, high = within
    if dtype is DType.BYTES:
        texts = [rng.bytes(length) for length in rng.integers(0, 6, math.prod(shape))]
        return np.fromiter(texts, np.object_, len(texts)).reshape(shape)
    if dtype is DType.BOOL or dtype.is_integer:
        values = rng.integers(int(low), int(high), shape, _WIDEST.get(dtype, np.dtype(np.int64)))
        return values.astype(dtype.numpy)
    floats = rng.uniform(low, high, shape)
    if dtype is DType.BF16:  # truncated: for random numbers rounding does not matter
        return (floats.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return floats.astype(dtype.numpy)


def nudged(
    rng: np.random.Generator, specs: Iterable[TensorSpec], tensors: Tensors
) -> dict[str, Array] | None:
    """Return `tensors` with every float moved to the next larger or smaller float.

    Returns None if no tensor of `specs` holds floats.
    """
    moved = {spec.name: _neighbours(rng, spec.dtype, tensors[spec.name]) for spec in specs}
    floats = {name: tensor for name, tensor in moved.items() if tensor is not None}
    return {**tensors, **floats} if floats else None


def _neighbours(rng: np.random.Generator, dtype: DType, data: Array) -> Array | None:
    if dtype is DType.BF16:  # bits: adding or subtracting 1 gives the neighbour, except at 0
        steps = np.where(data & 0x7FFF, rng.integers(0, 2, data.shape) * 2 - 1, 0)
        return (data.astype(np.int64) + steps).astype(np.uint16)
    if dtype.is_integer or not is_number(dtype):
        return None
    towards = np.where(rng.random(data.shape) < 0.5, -math.inf, math.inf)
    moved: Array = np.nextafter(data, towards.astype(data.dtype))
    return moved


def poison_of(dtype: DType) -> np.generic:
    """Return a value that no answer may contain: NaN, the largest integer, or True. Not BYTES."""
    if dtype is DType.BOOL:
        return dtype.scalar(True)
    return dtype.scalar(dtype.largest if dtype.is_integer else math.nan)


def readable(dtype: DType, array: Array) -> Array:
    """Return an array that NumPy can compute with: BF16 bits become FP32, other arrays stay."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype is DType.BF16 else array


def is_number(dtype: DType) -> bool:
    """Return whether elements of this type have a distance: all types but BOOL and BYTES."""
    return dtype not in (DType.BOOL, DType.BYTES)
