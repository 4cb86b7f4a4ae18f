"""Separates rounding from changes of an answer by padding, by a second arithmetic.

A request has one answer alone and another one in a padded execution. If they differ, both are
computed again by engines of the same graph with other roundings: see `Perturbable`. A change that
rounding causes is another one in each arithmetic. A change that padding causes is the same in all.
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
"""A change is no rounding if all arithmetics have it, and it is this many times as large as the
largest difference between two arithmetics. Kernels for other shapes may round each element in the
same direction, and answers may sum this up."""

_MOST_ELEMENTS: Final = 0.9
"""The share of elements that determines how far arithmetics differ. The others may be discontinuous
at the request's values, e.g. a box that enters a list."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers of one output to one request in one arithmetic."""

    alone: Array
    padded: Array


def exceeds_promise(spec: TensorSpec, pair: Pair) -> bool:
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
    """Find a change between alone and padded that rounding does not explain.

    `served` are the answers of the engine that serves, `others` those in other arithmetics, at
    least one, and `alone` further answers alone that differ from the served one by rounding.

    Returns the difference between the served answers at the place of the largest such change, and
    the largest distance by rounding there; None if rounding explains all.
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
        most = np.quantile(scaled, _MOST_ELEMENTS, method="higher") if scaled.size else 0.0
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
    """Find a change of an element without distances (a label) that is equal in all arithmetics."""
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
    """Return the size of each element plus a typical size of all."""
    sizes = np.abs(np.where(np.isfinite(numbers), numbers, 0))
    some = sizes[sizes > 0]
    return sizes + (float(np.median(some)) if some.size else 1.0)


def _signed(found: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the differences; 0 for equal infinities and for NaN twice, infinity for one NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = found - expected
    equal = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return np.where(equal, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _change(found: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.abs(_signed(found, expected))
