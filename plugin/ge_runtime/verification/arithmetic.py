"""Distinguishes changes of an answer that padding causes from rounding.

A request is executed alone and in a padded execution. If the two answers differ, engines of the
same graph with other roundings ("arithmetics", see `Perturbable`) compute both again. A change by
rounding differs between arithmetics. A change by padding is the same in all arithmetics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.specs import Array, TensorSpec
from ge_runtime.verification.distance import TOLERANCES, Difference, compare
from ge_runtime.verification.elements import readable

MARGIN: Final = 32
"""A change that occurs in all arithmetics is not rounding if it is this many times as large as the
largest difference between two arithmetics. The factor is large because kernels for other shapes may
round all elements in one direction, and a graph may add these errors up."""

_NOISE_QUANTILE: Final = 0.9
"""The noise of each element is at least this quantile of the noise of all elements. Elements above
it may lie at a discontinuity of the graph, e.g. a score at the threshold of a detector."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers of one output to one request in one arithmetic."""

    alone: Array
    padded: Array


def exceeds_tolerance(spec: TensorSpec, pair: Pair) -> bool:
    """Return whether the answers differ by more than the tolerance of the output's type.

    The tolerance is relative to each element plus the median of all elements.
    """
    if pair.alone.shape != pair.padded.shape:
        return True
    if spec.dtype not in TOLERANCES:
        return compare(spec, pair.padded, pair.alone) is not None
    alone, padded = (_numbers(spec, array) for array in (pair.alone, pair.padded))
    return bool(np.any(_change(padded, alone) / _unit(alone) > TOLERANCES[spec.dtype]))


def persistent_change(
    spec: TensorSpec, served: Pair, others: Sequence[Pair], alone: Sequence[Array] = ()
) -> tuple[Difference, float] | None:
    """Find a change between `alone` and `padded` that rounding does not explain.

    Args:
        spec: The output.
        served: The answers of the engine that serves.
        others: The answers in other arithmetics, at least one pair.
        alone: More answers to the request alone, which differ from `served.alone` by rounding.

    Returns:
        The difference of `served` at the element with the largest change, and the largest rounding
        of this element; None if rounding explains all changes.
    """
    shapes = {pair.alone.shape for pair in (served, *others)}
    if served.padded.shape != served.alone.shape or len(shapes) > 1:
        stable = len(shapes) == 1 and len({pair.padded.shape for pair in (served, *others)}) == 1
        difference = compare(spec, served.padded, served.alone)
        return (difference, 0.0) if difference is not None and stable else None
    if spec.dtype not in TOLERANCES:
        return _persistent_labels(spec, served, others, alone)
    first, last = _numbers(spec, served.alone), _numbers(spec, served.padded)
    unit = _unit(first)
    change = _signed(last, first)
    direction = np.sign(change)
    common = np.abs(change)
    noise = np.zeros(first.shape)
    for pair in others:
        one, other = _numbers(spec, pair.alone), _numbers(spec, pair.padded)
        common = np.minimum(common, np.maximum(direction * _signed(other, one), 0))
        noise = np.maximum(noise, _change(one, first))
        noise = np.maximum(noise, _change(other, last))
    for array in alone:
        if array.shape == first.shape:
            noise = np.maximum(noise, _change(_numbers(spec, array), first))
    with np.errstate(invalid="ignore"):
        scaled = noise / unit
        most = np.quantile(scaled, _NOISE_QUANTILE, method="higher") if scaled.size else 0.0
        allowed = np.maximum(TOLERANCES[spec.dtype], MARGIN * np.maximum(scaled, most))
        found = common / unit > allowed
    if not found.any():
        return None
    difference = compare(spec, served.padded, served.alone, where=found)
    if difference is None:
        return None
    return difference, float(noise[difference.place])


def _persistent_labels(
    spec: TensorSpec, served: Pair, others: Sequence[Pair], alone: Sequence[Array]
) -> tuple[Difference, float] | None:
    """Find a label, or other element without distances, that changes alike in all arithmetics."""
    stable = np.ones(served.alone.shape, np.bool_)
    for pair in others:
        stable &= np.asarray(pair.alone == served.alone) & np.asarray(pair.padded == served.padded)
    for array in alone:
        stable &= np.asarray(array == served.alone)
    difference = compare(spec, served.padded, served.alone, where=stable)
    return None if difference is None else (difference, 0.0)


def _numbers(spec: TensorSpec, array: Array) -> NDArray[np.float64]:
    return readable(spec.dtype, array).astype(np.float64)


def _unit(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the absolute value of each element plus the median of those that are not 0."""
    sizes = np.abs(np.where(np.isfinite(numbers), numbers, 0))
    some = sizes[sizes > 0]
    return sizes + (float(np.median(some)) if some.size else 1.0)


def _signed(found: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `found - expected`: 0 for equal infinities and two NaN, infinity for one NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = found - expected
    equal = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return np.where(equal, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _change(found: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.abs(_signed(found, expected))
