"""Search for the conditions under which requests differ: a shallow tree of features.

The best condition has the most mutual information with the difference, after the logarithm of the
number of conditions of its form is subtracted. This tolerates outliers, and prefers simple forms.
A condition is refined by up to two further tests. Requests that it does not cover get conditions of
their own. A condition is named only if chance is an unlikely explanation: Fisher's exact test,
corrected for the number of conditions tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_replay.comparing.features import Feature, Numbers, Values

Mask = NDArray[np.bool_]
Counts = NDArray[np.float64]

CHANCE: Final = 0.001
"""Largest probability that a named condition arises by chance, over all conditions tried."""
LEAST: Final = 5
"""Least number of differing and of equal requests that are evidence."""
_MOST_EQUAL: Final = 0.5
"""Largest share of the equal requests for which a condition may hold."""
_SMALL: Final = 0.1
"""A condition that covers a smaller share of the differing requests is no separate cause."""
_SAME_GAIN: Final = 1e-9
_MOST_TESTS: Final = 3
_MOST_CONDITIONS: Final = 4
_OUTLIERS: Final = 0.2
"""Largest share of the differing requests that may remain without a condition."""
_PURE: Final = 0.9
"""Least share of differing requests among those of a condition that is nearly exact."""


class Test(NamedTuple):
    """One test of a feature."""

    name: str
    text: str
    holds: Mask
    needs: str
    also: str = ""
    """Another test that holds for the same requests, so that either may be the cause."""


@dataclass(frozen=True)
class Condition:
    """A conjunction of tests."""

    tests: tuple[Test, ...]

    @property
    def holds(self) -> Mask:
        """The requests for which all tests hold."""
        return np.asarray(np.logical_and.reduce([test.holds for test in self.tests]))

    @property
    def text(self) -> str:
        """The condition as a clause."""
        return " and ".join(
            f"{test.text} (or {test.also})" if test.also else test.text for test in self.tests
        )

    @property
    def needs(self) -> frozenset[str]:
        """Names of the other requests that are necessary to reproduce the difference."""
        return frozenset(test.needs for test in self.tests if test.needs)


@dataclass(frozen=True)
class Requests:
    """The requests of a model.

    Args:
        features: Features of the requests.
        keys: A number for each request; equal requests have the same number.
    """

    features: Sequence[Feature]
    keys: NDArray[np.intp]

    def once(self, chosen: Mask) -> Mask:
        """Return the chosen requests, of equal ones only the first."""
        rows = np.flatnonzero(chosen)
        kept = np.zeros(len(chosen), bool)
        kept[rows[np.unique(self.keys[rows], return_index=True)[1]]] = True
        return kept


def find_conditions(requests: Requests, differs: Mask, equal: Mask) -> list[Condition]:
    """Return conditions that together cover the differing requests.

    Args:
        requests: All requests.
        differs: Requests that differ.
        equal: Requests that do not differ. Requests in neither mask are ignored.

    Returns:
        One condition for each cause; none if no condition has enough evidence.
    """
    found: list[Condition] = []
    rest, others = differs.copy(), equal.copy()
    while rest.sum() >= LEAST and len(found) < _MOST_CONDITIONS:
        condition = _conjunction(requests, rest, others)
        if condition is None:
            break
        found.append(condition)
        rest, others = rest & ~condition.holds, others & ~condition.holds
    if rest.sum() > _OUTLIERS * differs.sum():
        # Many requests have no condition: only nearly exact conditions are separate causes.
        least, every = _SMALL * differs.sum(), differs | equal
        found = [
            one
            for one in found
            if (one.holds & differs).sum() >= max(least, _PURE * (one.holds & every).sum())
        ]
    return found


def _conjunction(requests: Requests, differs: Mask, equal: Mask) -> Condition | None:
    first = _best(requests, differs, equal)
    found = Condition((first,)) if first else None
    while found and len(found.tests) < _MOST_TESTS:
        further = _best(requests, differs & found.holds, equal & found.holds)
        if further is None:
            break
        joined = Condition((*found.tests, further))
        if _information(joined, differs, equal) <= _information(found, differs, equal):
            break
        found = joined
    return found


def _information(condition: Condition, differs: Mask, equal: Mask) -> float:
    hits, others = (np.array([(condition.holds & x).sum()], float) for x in (differs, equal))
    return float(_gain(hits, others, int(differs.sum()), int(equal.sum()))[0])


def _best(requests: Requests, differs: Mask, equal: Mask) -> Test | None:
    """Return the best significant test, or None."""
    many, others = int(differs.sum()), int(equal.sum())
    if min(many, others) < LEAST:
        return None
    candidates = list(_candidates(requests.features, differs, equal))
    best = max(candidates, key=lambda one: one.gain - log(one.tries), default=None)
    if best is None:
        return None
    test = best.test(len(differs))
    if (test.holds & equal).sum() > _MOST_EQUAL * others:
        return None
    if best.feature.of_content:
        differs, equal = requests.once(differs), requests.once(equal)
    many, others = int(differs.sum()), int(equal.sum())
    hits, wrong = int((test.holds & differs).sum()), int((test.holds & equal).sum())
    if hits < LEAST or others - wrong < LEAST:
        return None
    if _chance(hits, wrong, many, others) * best.tries * len(candidates) >= CHANCE:
        return None
    for one in candidates:
        if abs(one.gain - best.gain) < _SAME_GAIN and not _related(one.feature.name, test.name):
            other = one.test(len(differs))
            if ((other.holds == test.holds) | ~(differs | equal)).all():
                return test._replace(also=other.text)
    return test


def _related(name: str, other: str) -> bool:
    """Return whether two features describe the same input, or are the same."""
    return name.rpartition(" ")[2] == other.rpartition(" ")[2]


@dataclass(frozen=True)
class _Candidate:
    """The best condition of one feature and form."""

    feature: Feature
    first: int
    """The code of the value, or the rank of the lower bound."""
    last: int
    gain: float
    tries: float
    """Number of conditions of this form."""

    def test(self, count: int) -> Test:
        """Return the test of `count` requests."""
        feature = self.feature
        if isinstance(feature, Values):
            holds = np.zeros(count, bool)
            holds[feature.rows[feature.codes == self.first]] = True
            return Test(feature.name, feature.texts[self.first], holds, feature.needs)
        ranks = feature.ranked[0]
        low, high = ranks[self.first], ranks[self.last]
        with np.errstate(invalid="ignore"):
            holds = (feature.values >= low) & (feature.values <= high)
        if low == high:
            text = f"{low:.9g}"
        elif self.last == len(ranks) - 1:
            text = f"{low:.9g} or more"
        elif self.first == 0:
            text = f"{high:.9g} or less"
        else:
            text = f"{low:.9g} to {high:.9g}"
        return Test(feature.name, f"{feature.name} is {text}", holds, feature.needs)


def _candidates(features: Sequence[Feature], differs: Mask, equal: Mask) -> Iterator[_Candidate]:
    many, others = int(differs.sum()), int(equal.sum())
    for feature in features:
        if isinstance(feature, Values):
            hits, wrong = (
                _count(feature.codes, x[feature.rows], len(feature.texts)) for x in (differs, equal)
            )
            gains = _gain(hits, wrong, many, others)
            at = int(gains.argmax())
            yield _Candidate(feature, at, at, float(gains[at]), len(gains))
        else:
            yield from _ranges(feature, differs, equal)


def _ranges(feature: Numbers, differs: Mask, equal: Mask) -> Iterator[_Candidate]:
    ranks, codes = feature.ranked
    size = len(ranks)
    hits, wrong = (_count(codes, x, size + 1)[:size] for x in (differs, equal))
    # The bounds are values of differing requests.
    bounds = np.flatnonzero(hits)
    if not len(bounds):
        return
    many, others = int(differs.sum()), int(equal.sum())
    ratio = many / others
    ranges = {_range(hits - cost * wrong, hits) for cost in (ratio, ratio**0.5, 1.0, 4.0)}
    last, zero = np.full(len(bounds), size - 1), np.zeros(len(bounds), np.intp)
    lows = np.concatenate([bounds, zero, bounds, [low for low, _ in ranges]])
    highs = np.concatenate([last, bounds, bounds, [high for _, high in ranges]])
    hit_sums, wrong_sums = (np.concatenate([[0.0], x.cumsum()]) for x in (hits, wrong))
    gains = _gain(
        hit_sums[highs + 1] - hit_sums[lows],
        wrong_sums[highs + 1] - wrong_sums[lows],
        many,
        others,
    )
    start = 0
    for count, tries in (
        (len(bounds), 2.0 * size),
        (len(bounds), 2.0 * size),
        (len(bounds), float(size)),
        (len(ranges), size * (size + 1) / 2),
    ):
        at = start + int(gains[start : start + count].argmax())
        yield _Candidate(feature, int(lows[at]), int(highs[at]), float(gains[at]), tries)
        start += count


def _count(codes: NDArray[np.intp], chosen: Mask, size: int) -> Counts:
    """Return how many of the chosen requests have each code."""
    return np.bincount(codes, chosen, size).astype(np.float64)


def _range(weights: Counts, hits: Counts) -> tuple[int, int]:
    """Return the first and last index, both with hits, of the range with the largest sum."""
    sums = np.concatenate(([0.0], weights.cumsum()))
    lowest = np.minimum.accumulate(sums)
    end = int((sums[1:] - lowest[:-1]).argmax())
    start = int(sums[: end + 1].argmin())
    inside = np.flatnonzero(hits[start : end + 1])
    return (start + int(inside[0]), start + int(inside[-1])) if len(inside) else (start, end)


def _gain(hits: Counts, wrong: Counts, many: int, others: int) -> Counts:
    """Return the mutual information, in nats times the number of requests.

    Args:
        hits: Differing requests for which each condition holds.
        wrong: Equal requests for which each condition holds.
        many: Number of differing requests.
        others: Number of equal requests.

    Returns:
        0 for conditions that hold more often for equal requests.
    """
    held = hits + wrong
    total = many + others
    gain = (
        _term(hits, held * many / total)
        + _term(wrong, held * others / total)
        + _term(many - hits, (total - held) * many / total)
        + _term(others - wrong, (total - held) * others / total)
    )
    return np.where(hits * others > wrong * many, gain, 0.0)


def _term(found: Counts, expected: Counts) -> Counts:
    safe = np.where(found > 0, found, 1.0)
    return np.where(found > 0, found * np.log(safe / np.where(expected > 0, expected, 1.0)), 0.0)


def _chance(hits: int, wrong: int, many: int, others: int) -> float:
    """Return the probability of `hits` or more by chance: Fisher's exact test, one side."""
    held = hits + wrong
    total = many + others
    return sum(
        exp(_log_choose(many, k) + _log_choose(others, held - k) - _log_choose(total, held))
        for k in range(hits, min(many, held) + 1)
        if held - k <= others
    )


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
