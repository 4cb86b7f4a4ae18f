"""Groups of differences that have one cause, each with its condition and smallest request."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Final

import numpy as np

from triton_replay.capture.records import Request
from triton_replay.comparing.conditions import Condition, Mask, Requests, find_conditions
from triton_replay.comparing.differences import Difference
from triton_replay.comparing.features import (
    CONNECTION,
    EARLIER,
    EQUAL,
    NEIGHBORS,
    content_of,
    features_of,
    most_values,
    ordinals,
    sequence_runs,
)

_SAME: Final = 0.8
"""Sets of requests with this share in common have one cause."""
_CHANCE: Final = 0.05
"""Largest probability that requests meet the condition of another cause by chance."""
_MOSTLY: Final = 0.9
"""Share that counts as almost all."""
_OUTLIERS: Final = 0.2
"""Share of the requests of a cause that need not meet its condition."""
_MOST_PAIRS: Final = 100
"""Most pairs of equal requests whose responses are compared."""
_MOST_RANKED: Final = 50
"""Most requests among which the smallest is selected."""
_FEW_PAIRS: Final = 0.2
"""A server is nondeterministic from this share of equal requests with different responses."""

_VALUES: Final = ("values of some rows", "values", "NaN", "infinity", "order", "off by one")
_ROUNDING: Final = "rounding"
_LEVELS: Final = {
    **dict.fromkeys(("shape", "datatype", "output missing", "output in B only"), 1),
    **dict.fromkeys(("values", "field"), 2),
    _ROUNDING: 3,
}
"""Levels of families (see `_family`); 0 by default. Within a request, a difference hides
differences of higher levels."""
_EQUAL: Final = 4
"""Level of a request without differences."""

Key = tuple[str, str]
"""The family of a difference's kind (see `_family`), and its output."""


@dataclass(frozen=True)
class Compared:
    """A request with the differences between its responses."""

    model: str
    request: Request
    differences: tuple[Difference, ...]
    span: tuple[int, int] | None = None
    """Nanoseconds in capture A at which the request and its response ended."""
    varies: str = ""
    """The server that answered this request in two ways when it was sent twice."""


Varies = Callable[[int, int], str]
"""Returns the server whose responses to two equal requests (by index) differ, or ""."""


@dataclass(frozen=True)
class Group:
    """Requests whose differences have one cause, as far as the requests show it."""

    kind: str
    model: str
    output: str
    condition: str
    """Text of the condition and its counts, "always" or "almost always"; "" if none is known."""
    requests: tuple[int, ...]
    """Numbers of the requests."""
    of: int
    """Number of compared requests of this model."""
    smallest: Request
    example: str
    """The difference of the smallest request."""
    largest: float
    reproduce: tuple[int, ...] = ()
    """Numbers of the requests to send, in order, to reproduce the difference of `smallest`."""


def group(compared: Sequence[Compared], varies: Varies | None = None) -> list[Group]:
    """Return all groups, the largest first.

    Args:
        compared: All requests, in the order of sending.
        varies: Finds servers that answer equal requests in different ways.
    """
    by_model: defaultdict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(compared):
        by_model[one.model].append(index)
    groups: list[Group] = []
    for model, indexes in by_model.items():
        if any(compared[index].differences for index in indexes):
            groups += _Model(model, compared, indexes, varies).groups()
    return sorted(groups, key=lambda one: (-len(one.requests), one.model, one.kind, one.output))


@dataclass(frozen=True)
class _Cause:
    """Differences with one cause."""

    keys: frozenset[Key]
    requests: Mask
    equal: Mask
    """Requests without these differences, and without a difference that may hide them."""
    condition: Condition | None = None

    @property
    def is_partial(self) -> bool:
        """True if only some requests have the differences, and no condition explains which."""
        return self.condition is None and bool(self.equal.any())


@dataclass(eq=False)
class _Model:
    """The requests of one model.

    Args:
        name: The model.
        every: The requests of all models.
        indexes: Indexes in `every` of this model's requests.
        varies: See `group`.
    """

    name: str
    every: Sequence[Compared]
    indexes: Sequence[int]
    varies: Varies | None

    def __post_init__(self) -> None:
        self._compared = [self.every[index] for index in self.indexes]
        requests = [one.request for one in self._compared]
        self._contents = [content_of(one, most_values(len(requests))) for one in requests]
        self._runs = sequence_runs(self._contents)
        spans = [one.span for one in self._compared if one.span is not None]
        self._spans = spans if len(spans) == len(requests) else None
        keys = [one.key.hex() or str(row) for row, one in enumerate(self._contents)]
        features = features_of(requests, self._contents, self.indexes, self._spans)
        self._requests = Requests(features, np.unique(keys, return_inverse=True)[1])
        levels = (
            min((_LEVELS.get(_family(each.kind), 0) for each in one.differences), default=_EQUAL)
            for one in self._compared
        )
        self._levels = np.array(list(levels))

    def groups(self) -> Iterator[Group]:
        """Yield the groups."""
        merged: list[_Cause] = []
        for cause in (one for cluster in self._clusters() for one in self._causes(*cluster)):
            for at, other in enumerate(merged):
                if _are_one(cause, other):
                    merged[at] = self._join(cause, other)
                    break
            else:
                merged.append(cause)
        for cause in merged:
            yield self._group(cause)

    def _clusters(self) -> list[tuple[frozenset[Key], Mask]]:
        """Return the requests of each key; join keys of one family with the same requests."""
        masks: dict[Key, Mask] = {}
        for row, one in enumerate(self._compared):
            for each in one.differences:
                key = _family(each.kind), each.output
                masks.setdefault(key, np.zeros(len(self._compared), bool))[row] = True
        clusters: list[tuple[frozenset[Key], Mask]] = []
        for key, mask in masks.items():
            for at, (keys, other) in enumerate(clusters):
                if key[0] in {family for family, _ in keys} and _alike(mask, other):
                    clusters[at] = keys | {key}, mask | other
                    break
            else:
                clusters.append((frozenset({key}), mask))
        # The largest first: `groups` merges smaller clusters into it.
        return sorted(clusters, key=lambda each: -int(each[1].sum()))

    def _causes(self, keys: frozenset[Key], requests: Mask) -> Iterator[_Cause]:
        """Yield the causes of one cluster, those with a condition first."""
        equal = self._equal(keys, requests)
        rest, found = requests, list[_Cause]()
        # Some small outputs are free of rounding by chance.
        by_chance = {family for family, _ in keys} == {_ROUNDING} and _is_few(equal, requests)
        for condition in () if by_chance else find_conditions(self._requests, requests, equal):
            found.append(_Cause(keys, rest & condition.holds, equal, condition))
            rest = rest & ~condition.holds
        if found and rest.sum() <= _OUTLIERS * requests.sum():
            found[0] = replace(found[0], requests=found[0].requests | rest)
        elif rest.any():
            found.append(_Cause(keys, rest, equal))
        yield from found

    def _equal(self, keys: frozenset[Key], requests: Mask) -> Mask:
        level = min(_LEVELS.get(family, 0) for family, _ in keys)
        return np.asarray(~requests & (self._levels >= level))

    def _join(self, one: _Cause, other: _Cause) -> _Cause:
        keys, requests = one.keys | other.keys, one.requests | other.requests
        equal = self._equal(keys, requests)
        found = find_conditions(self._requests, requests, equal)
        kept = other.condition or one.condition
        return _Cause(keys, requests, equal, found[0] if len(found) == 1 else kept)

    def _group(self, cause: _Cause) -> Group:
        rows = [int(row) for row in np.flatnonzero(cause.requests)]
        every = {row: self._compared[row].differences for row in rows}
        found = {
            row: [each for each in of_row if (_family(each.kind), each.output) in cause.keys]
            for row, of_row in every.items()
        }
        kind = _kind_of([{each.kind for each in differences} for differences in found.values()])
        condition = ""
        if _is_few(cause.equal, cause.requests):
            condition = "almost always" if cause.equal.any() else "always"
            if not (cause.equal | cause.requests).all():
                condition += ", unless another difference hides it"
        needs: frozenset[str] = frozenset()
        if cause.condition is not None:
            condition, needs = _condition_text(cause, cause.condition), cause.condition.needs
            typical = [row for row in rows if cause.condition.holds[row]]
        else:
            typical = rows
            server, differing, pairs = self._repeated(rows)
            if server:
                kind = f"nondeterministic in {server}"
                condition = f"responses to equal requests differ: {differing} of {pairs} pairs"
        smallest, needed = self._smallest(typical, needs)
        of_kind = [each for each in found[smallest] if each.kind == kind] or found[smallest]
        return Group(
            kind=kind,
            model=self.name,
            output=", ".join(sorted({output for _, output in cause.keys if output})),
            condition=condition,
            requests=tuple(self._compared[row].request.number for row in rows),
            of=len(self._compared),
            smallest=self._compared[smallest].request,
            example=of_kind[0].detail,
            largest=max(each.size for differences in found.values() for each in differences),
            reproduce=tuple(self.every[index].request.number for index in needed),
        )

    def _repeated(self, rows: Sequence[int]) -> tuple[str, int, int]:
        """Return the server that answers equal requests in different ways, and its counts.

        Returns:
            The server, or "" without evidence; the pairs with different responses; all pairs.
        """
        found = [one.varies for one in (self._compared[row] for row in rows) if one.varies]
        pairs = len(rows)
        if self.varies is not None:
            equal: defaultdict[bytes, list[int]] = defaultdict(list)
            for row, content in enumerate(self._contents):
                if content.key and not content.sequence:
                    equal[content.key].append(self.indexes[row])
            repeated = [
                (self.indexes[row], other)
                for row in rows
                for other in equal[self._contents[row].key]
                if other != self.indexes[row]
            ][:_MOST_PAIRS]
            pairs = len(repeated)
            found = [server for server in (self.varies(*pair) for pair in repeated) if server]
        if len(found) < 2 or len(found) < _FEW_PAIRS * pairs:
            return "", 0, pairs
        return Counter(found).most_common(1)[0][0], len(found), pairs

    def _smallest(self, rows: Sequence[int], needs: frozenset[str]) -> tuple[int, list[int]]:
        """Return the row whose difference the fewest requests reproduce, and their indexes."""
        early = needs & {CONNECTION, EARLIER}
        sizes = [one.request.body_size for one in self._compared]
        steps = np.nan_to_num(ordinals(self._runs)).tolist()
        ranked = sorted(rows, key=lambda row: (row if early else steps[row], sizes[row]))
        needed = {row: self._needed(row, needs) for row in ranked[:_MOST_RANKED]}
        found = min(needed, key=lambda row: (len(needed[row]), sizes[row]))
        return found, needed[found]

    def _needed(self, row: int, needs: frozenset[str]) -> list[int]:
        """Return the indexes of all requests that reproduce a row's difference, in order."""
        rows, run, key = {row}, self._runs[row], self._contents[row].key
        if run is not None:
            rows.update(each for each in range(row) if self._runs[each] == run)
        if EQUAL in needs:
            rows.update(each for each in range(row) if self._contents[each].key == key)
        if NEIGHBORS in needs and self._spans is not None:
            start, end = self._spans[row]
            rows.update(at for at, (a, b) in enumerate(self._spans) if a <= end and b >= start)
            rows.add(max(row - 1, 0))
        indexes = {self.indexes[each] for each in rows}
        connection = self._compared[row].request.connection
        for index in range(self.indexes[row]) if needs & {CONNECTION, EARLIER} else ():
            if EARLIER in needs or self.every[index].request.connection == connection:
                indexes.add(index)
        return sorted(indexes)


def _condition_text(cause: _Cause, condition: Condition) -> str:
    hits, all_hits = int((cause.requests & condition.holds).sum()), int(cause.requests.sum())
    wrong, equal = int((cause.equal & condition.holds).sum()), int(cause.equal.sum())
    often = "only" if hits >= _MOSTLY * all_hits else "more often"
    counts = f"{hits} of {all_hits} that differ, {wrong} of {equal} that are equal"
    return f"{often} where {condition.text}: {counts}"


def _are_one(one: _Cause, other: _Cause) -> bool:
    """Return whether two causes are the same."""
    outputs = ({output for _, output in each.keys} for each in (one, other))
    # One cause may lead to rounding in some requests, and to larger differences in others.
    by_size = {family for family, _ in one.keys | other.keys} == {"values", _ROUNDING}
    by_size = by_size and len(set(map(frozenset, outputs))) == 1
    if one.condition is not None and other.condition is not None:
        conditions = one.condition, other.condition
        names = {frozenset(test.name for test in each.tests) for each in conditions}
        masks = one.condition.holds, other.condition.holds
        return len(names) == 1 and (_alike(*masks) or (by_size and _within(*masks)))
    if other.condition is not None and one.is_partial:
        # Too few differences to find the condition, but not to confirm it.
        relevant = one.requests | one.equal
        held, total = int((relevant & other.condition.holds).sum()), int(relevant.sum())
        count = int(one.requests.sum())
        inside = not (one.requests & ~other.condition.holds).any()
        return inside and comb(held, count) / comb(total, count) < _CHANCE
    rare = all(each.requests.sum() < each.equal.sum() for each in (one, other))
    return by_size and rare and one.is_partial and other.is_partial


def _is_few(few: Mask, many: Mask) -> bool:
    return bool(few.sum() <= (1 - _MOSTLY) * (few | many).sum())


def _within(one: Mask, other: Mask) -> bool:
    """Return whether most of the smaller set is in the larger one."""
    return bool((one & other).sum() >= _SAME * min(one.sum(), other.sum()))


def _alike(one: Mask, other: Mask) -> bool:
    return bool((one & other).sum() >= _SAME * (one | other).sum())


def _family(kind: str) -> str:
    return "values" if kind in _VALUES else kind


def _kind_of(kinds: Iterable[Iterable[str]]) -> str:
    """Return the kind of a group from the kinds of its requests."""
    every = list(kinds)
    counts = Counter(kind for each in every for kind in each)
    for kind in ("off by one", "order"):
        # Some values are off by one, or in another order, by chance.
        if kind in counts and counts[kind] < _MOSTLY * len(every):
            counts["values"] += counts.pop(kind)
    if len(counts) > 1:
        del counts[_ROUNDING]
    if counts["values of some rows"]:
        # A request of one row cannot show that other rows are equal.
        counts["values of some rows"] += counts.pop("values", 0)
    return counts.most_common(1)[0][0]
