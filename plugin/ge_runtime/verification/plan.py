"""The plan of a load check: which requests are executed together, at which sizes.

The plan depends only on the configuration, the gears and the work of the graph. It does not depend
on the clock, the load of the machine or the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import PaddingRule, RuntimeConfig
from ge_runtime.specs import ROWS, Relation

MOST_FLOPS: Final = 3 * 10**10
"""Floating-point operations of a plan: a core of 2024 executes them in about 0.3 to 1.5 seconds.
If a plan has more operations, its least important trials are left out."""

MOST_GEARS: Final = 8
"""Largest number of gears in a plan. Models with more gears are checked at the smallest, the two
largest, and some gears between them."""

EXECUTIONS: Final = 4
"""Executions that the estimated work of a trial counts: several with different contents, and those
of its requests alone."""

_PROBES: Final = 3
"""Largest number of requests of a trial whose answers are compared."""

Sizes = Mapping[str, int]
"""The size of a request's tensors along each axis."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One execution of one-row requests, as serving may execute them."""

    gear: Gear
    """The size of the execution."""
    probes: tuple[Sizes, ...]
    """The requests whose answers are compared."""
    company: tuple[Sizes, ...] = ()
    """The other requests, whose values vary; the first has the size of the execution."""

    @property
    def requests(self) -> tuple[Sizes, ...]:
        """All requests: the first of the company, the probes, the rest of the company."""
        return (*self.company[:1], *self.probes, *self.company[1:])

    @property
    def padded(self) -> bool:
        """True if a probe is smaller than the execution."""
        return any(
            own < self.gear.extents[axis] for each in self.probes for axis, own in each.items()
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The trials of a load check."""

    trials: tuple[Trial, ...]
    """The smallest first."""
    left_out: tuple[str, ...]
    """Descriptions of gears and trials that are not executed."""
    flops: int
    """Estimated operations of all trials."""
    reduced: bool
    """True if trials were left out because of their work."""
    analysed: bool = True
    """False if the operations were estimated from weights and positions."""

    @property
    def special(self) -> tuple[Trial, ...]:
        """Small trials to repeat with special values; none if that is too much work."""
        if 2 * self.flops > MOST_FLOPS:
            return ()
        return tuple(trial for trial in self.trials if trial.company or trial.padded)[:2]


def plan_of(
    config: RuntimeConfig,
    gears: Gears,
    flops: Callable[[Gear], int | None] = lambda _: None,
    weights_bytes: int = 0,
) -> Plan:
    """Return the plan of a model.

    `flops` estimates the operations of one execution. If it returns None, two operations are
    counted for each of the graph's weights at each position.
    """
    trials, left_out = candidates(config, gears)
    each = max(1, weights_bytes // 2)  # two operations for four bytes
    analysed = True

    def work(trial: Trial) -> int:
        nonlocal analysed
        known = flops(trial.gear)
        if known is None:
            analysed = False
            known = each * _elements(trial.gear)
        return EXECUTIONS * known

    # Work never decreases when sizes grow. If all trials fit even with the work of the largest,
    # the graph is analysed only once.
    largest = max(trials, key=lambda trial: _elements(trial.gear), default=None)
    if largest is None:
        return Plan((), tuple(left_out), 0, reduced=False)
    bound = work(largest)
    if bound * len(trials) <= MOST_FLOPS:
        total = bound * len(trials)
        return Plan(_ordered(trials), tuple(left_out), total, reduced=False, analysed=analysed)
    taken: list[Trial] = []
    total = 0
    skipped: list[Trial] = []
    for trial in trials:
        options = (trial, _smaller(config, gears, trial))
        for option in options:
            if option is None:
                continue
            own = work(option)
            if total + own <= MOST_FLOPS:
                taken.append(option)
                total += own
                break
        else:
            skipped.append(trial)
    if not taken:
        taken = [_smaller(config, gears, skipped[0]) or skipped[0]]
        total = work(taken[0])
    left_out += [f"{trial.gear} (work)" for trial in _ordered(skipped)]
    return Plan(_ordered(taken), tuple(left_out), total, bool(skipped), analysed)


def candidates(config: RuntimeConfig, gears: Gears) -> tuple[list[Trial], list[str]]:
    """Return all trials, the most important first, and descriptions of gears without a trial."""
    every = gears.every()
    chosen = _spread(every)[:MOST_GEARS]
    left_out = []
    if len(every) > MOST_GEARS:
        left_out.append(f"{len(every) - MOST_GEARS} gear(s) between these")
    trials: list[Trial] = []
    for gear in _targets(config, gears, chosen):
        for trial in _trials_at(config, gears, gear, turn=len(trials)):
            if trial not in trials:
                trials.append(trial)
    return trials, left_out


def served_gear(config: RuntimeConfig, gears: Gears, requests: Sequence[Sizes]) -> Gear | None:
    """Return the size at which serving executes these one-row requests together.

    Returns None if serving never executes them together. A single request that fits no gear is
    executed at its own size if config.pbtxt allows it.
    """
    if len(requests) > 1 and (not config.batched or len(requests) > config.rows):
        return None
    needs = [
        {axis: config.axis_sizes.executed(axis, size) for axis, size in sizes.items()}
        for sizes in requests
    ]
    for axis in config.equal_axes:
        if len({sizes[axis] for sizes in requests}) > 1 or requests[0][axis] != needs[0][axis]:
            return None
    if not all(_answerable(config, sizes) for sizes in requests):
        return None
    extents = {axis: max(own[axis] for own in needs) for axis in needs[0]}
    gear = gears.fit(len(requests), extents)
    if gear is None:
        own_size = len(requests) == 1 and config.oversize == "fallback"
        return Gear(1, extents) if own_size else None
    if config.reproducible and any(gears.fit(1, own) != gear for own in needs):
        return None
    return gear


def sizes_within(config: RuntimeConfig, extents: Sizes, *, turn: int = 0) -> list[dict[str, int]]:
    """Return sizes of requests that fit into an execution of these extents, the smallest first.

    They are the smallest size, a prime about half as large as the execution, and one element less
    than the execution. With several padded axes there are also sizes that are small along one axis
    only. All sizes but the first are rotated by `turn`.
    """
    padded = [axis for axis in extents if config.padding[axis] is not PaddingRule.EQUAL]
    minimums = config.axis_sizes.minimums
    least = _smallest(config, extents, padded)
    if least is None:
        return []
    sizes = [least]
    middle = {
        axis: max(_prime(extents[axis] // 2 + at), minimums[axis]) for at, axis in enumerate(padded)
    }
    almost = {axis: max(extents[axis] - 1, minimums[axis]) for axis in padded}
    more = [{**extents, **middle}, {**extents, **almost}]
    if len(padded) > 1:
        more += [{**extents, axis: least[axis]} for axis in padded]
    turn %= len(more)
    sizes += more[turn:] + more[:turn]
    fitting = [own for own in sizes if all(own[axis] <= extents[axis] for axis in extents)]
    return [own for at, own in enumerate(fitting) if own not in fitting[:at]]


def _targets(config: RuntimeConfig, gears: Gears, chosen: Sequence[Gear]) -> Iterator[Gear]:
    """Yield the sizes to execute: chosen gears, with axes without gears at parts of their limit."""
    geared = set(chain.from_iterable(config.gears))
    free = [axis for axis in config.limits if axis not in geared]
    free_rows = config.batched and ROWS not in geared
    shares = _shares(config, free) if free else [{}]
    for at in range(max(len(chosen), len(shares))):
        gear = chosen[at % len(chosen)]
        rows = min(1 + _PROBES, config.rows) if free_rows else gear.rows
        extents = {**gear.extents, **shares[at % len(shares)]}
        if config.axis_sizes.totals:
            rows = min(rows, gears.most_rows(extents))
        yield Gear(rows, extents)


def _shares(config: RuntimeConfig, free: Sequence[str]) -> list[dict[str, int]]:
    """Return sizes of axes without gears: small, the limit, and about 1/8, 1/3 and 1/2 of it."""
    executed = config.axis_sizes.executed
    smallest = config.axis_sizes.smallest(config.outputs)
    shares: list[dict[str, int]] = []
    for part in (
        lambda axis, limit: 4 * smallest[axis],
        lambda axis, limit: limit,
        lambda axis, limit: math.ceil(limit / 8),
        lambda axis, limit: _prime(limit // 3),
        lambda axis, limit: math.ceil(limit / 2),
    ):
        sizes = {
            axis: min(executed(axis, max(part(axis, limit), smallest[axis])), limit)
            for axis, limit in config.limits.items()
            if axis in free
        }
        if sizes not in shares:
            shares.append(sizes)
    return shares


def _trials_at(config: RuntimeConfig, gears: Gears, gear: Gear, *, turn: int) -> Iterator[Trial]:
    """Yield trials at this size: one of several requests, and some of one padded request."""
    found = sizes_within(config, gear.extents, turn=turn)
    extents = dict(gear.extents)
    count = _requests_at(config, gears, gear)
    if count > 1:
        probes = [
            own for own in found if served_gear(config, gears, [extents, own]) is not None
        ] or [extents]
        # If the trial has no room for all probes, different trials have different probes.
        start = turn % len(probes) if count - 1 < len(probes) else 0
        probes = (probes[start:] + probes[:start])[: min(_PROBES, count - 1)]
        company = (extents,) * (count - len(probes))
        trial = Trial(gear, tuple(probes), company)
        served = served_gear(config, gears, trial.requests)
        if served is not None:
            yield Trial(served, trial.probes, company)
    elif count == 1 and not found:
        found = [extents]
    alone = [own for own in (*found, extents) if served_gear(config, gears, [own]) == gear]
    padded = [own for own in alone if gear != _own_size(config, own)]
    if padded or count == 1:
        for own in (padded or alone[-1:])[:_PROBES]:
            yield Trial(gear, (own,))


def _requests_at(config: RuntimeConfig, gears: Gears, gear: Gear) -> int:
    """Return how many requests of this gear's size serving executes together at this gear.

    It is the smallest possible number above `_PROBES`, or else the largest one; 0 if none is
    possible.
    """
    extents = dict(gear.extents)
    most = min(gear.rows, config.rows)
    least = 0
    for count in range(1, most + 1):
        served = served_gear(config, gears, [extents] * count)
        if served is not None and served.rows == gear.rows and served.extents == extents:
            least = count
            if count >= 1 + _PROBES:
                break
    return least


def _own_size(config: RuntimeConfig, sizes: Sizes) -> Gear:
    executed = config.axis_sizes.executed
    return Gear(1, {axis: executed(axis, size) for axis, size in sizes.items()})


def _smaller(config: RuntimeConfig, gears: Gears, trial: Trial) -> Trial | None:
    """Return the trial with one probe; None if its execution would not be smaller."""
    if len(trial.requests) <= 2:
        return None
    probes, company = trial.probes[:2][-1:], trial.company[:1]
    gear = served_gear(config, gears, (*company, *probes))
    if gear is None or gear.extents != trial.gear.extents or gear.rows >= trial.gear.rows:
        return None
    return Trial(gear, probes, company)


def _smallest(
    config: RuntimeConfig, extents: Sizes, padded: Sequence[str]
) -> dict[str, int] | None:
    """Double the smallest sizes until every output has elements; None if that is impossible."""
    sizes = {**extents, **{axis: config.axis_sizes.minimums[axis] for axis in padded}}
    while not _answerable(config, sizes):
        if sizes == extents:
            return None
        sizes = {axis: min(2 * size, extents[axis]) for axis, size in sizes.items()}
    return sizes


def _answerable(config: RuntimeConfig, sizes: Sizes) -> bool:
    dims = chain.from_iterable(spec.dims for spec in config.outputs)
    return all(dim.size(sizes) >= 1 for dim in dims if isinstance(dim, Relation))


def _spread(gears: Sequence[Gear]) -> list[Gear]:
    """Order gears: the smallest, the largest, the second largest, then middles of the rest."""
    order = [*gears[:1], *reversed(gears[1:][-2:])]
    parts = [list(gears[1:-2])]
    while parts:
        part = parts.pop(0)
        if part:
            middle = len(part) // 2
            order.append(part[middle])
            parts += [part[:middle], part[middle + 1 :]]
    return order


def _ordered(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    return tuple(sorted(trials, key=lambda trial: _elements(trial.gear)))


def _elements(gear: Gear) -> int:
    return gear.rows * math.prod(gear.extents.values())


def _prime(most: int) -> int:
    """Return the largest prime up to `most`, or 1."""
    for number in range(most, 1, -1):
        if all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            return number
    return 1
