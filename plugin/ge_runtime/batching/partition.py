"""Which requests of a batch are executed together, at which gears, and in which order.

The request batch is sorted and cut into runs of neighbours, each of them one execution. Dynamic
programming finds the cuts of least predicted time. Numbers only: no clock is read here, no tensor
is seen.

What is exact:

- For every order that is tried, the partition into runs is the optimum of the cost model, given
  the gears and the capacity.
- With one axis, request batches of one-row requests get the optimum over all partitions into sets.
  Rank the sets of any partition by their longest member, and deal the request batch out again from
  its longest request on, keeping the sizes of the sets: no set's longest member grows, and the sets
  are runs now. (It needs the time of a set not to fall when its longest member grows. This could
  fail only where rows and the axis share a table and some input lacks the axis.)
- With several axes, or several rows per request, the optimum over sets is a packing problem, and
  may be better than all runs of the orders tried.

Deadlines: if the optimum, its executions run earliest deadline first, meets all of them, it is the
plan. Otherwise the best of a family of plans is taken: the k requests with the earliest deadlines
come first and all others after them; each part is the optimum for itself, and executes its
executions earliest deadline first. k is 0, 1, 2, 4, 8, ..., and the number of requests that have
deadlines. Best is what misses the fewest deadlines, and among such plans what ends first. A
deadline that its request would miss even if it were executed alone, now, is lost in every plan and
counts as none: it must not make others late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Fitted, Gear, Gears, Ints

_ROUNDING: Final = 1 + 1e-12  # sums of times that differ by less are the same time


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution: whose rows it takes, and how large it is."""

    members: tuple[int, ...]
    """Places in the request batch, ascending."""
    gear: Gear
    """The size of the batch, padding included."""
    seconds: float
    """Predicted."""


class BatchPartitioner:
    """Plans request batches of one model. Immutable; safe from any thread."""

    def __init__(self, gears: Gears, cost: CostModel, capacity: int) -> None:
        """capacity: the most rows of requests in one execution."""
        self._gears = gears
        self._cost = cost
        self._capacity = capacity

    def plan(
        self,
        rows: Sequence[int],
        sizes: Mapping[str, Sequence[int]],
        *,
        now: float = 0.0,
        deadlines: Sequence[float] | None = None,
    ) -> list[Execution]:
        """The executions that a batch becomes, in the order to run them; each request is in one.

        rows: of each request, at least 1; sizes: every axis, the size that each request needs along
        it. A request that no gear holds gets an execution of its own at exactly its size; one of
        more rows than the capacity gets an execution of its own as well.

        deadlines: of each request, on the clock of `now`, in seconds; inf for none.

        Executions without deadlines run the longest first: all answers of a request batch leave
        together when its last execution ends, so where one executor runs them the order is free,
        and where several executors do, the longest first ends soonest (within 4/3 of the optimum,
        R. L. Graham, Bounds on multiprocessing timing anomalies, 1969).
        """
        if not rows:
            return []
        if len(rows) == 1:
            return [self.execution_of((0,), rows, sizes)]
        requests = _RequestSizes(rows, sizes)
        optimum = self._optimum(requests, np.arange(len(rows)))
        due = [math.inf] * len(rows) if deadlines is None else list(deadlines)
        plan = _earliest_first(optimum, due)
        if _missed(plan, now, due):
            plan = self._before_deadlines(requests, optimum, now, due)
        return plan

    def execution_of(
        self, members: Sequence[int], rows: Sequence[int], sizes: Mapping[str, Sequence[int]]
    ) -> Execution:
        """The execution of `members`, places in the request batch, whatever the cost.

        rows, sizes: of the whole request batch, see `plan`. If no gear holds the members together,
        the batch has exactly the size that they need.
        """
        members = sorted(members)
        total = sum([rows[member] for member in members])
        extents = {axis: max([own[member] for member in members]) for axis, own in sizes.items()}
        gear = self._gears.fit(total, extents) or Gear(total, extents)
        return Execution(tuple(members), gear, self._cost.seconds(gear.rows, gear.extents))

    def _optimum(self, requests: _RequestSizes, members: NDArray[np.intp]) -> list[Execution]:
        """The executions of least total time for `members`, in no particular order."""
        counts = requests.counts[members]
        extents = {axis: own[members] for axis, own in requests.extents.items()}
        alone = self._gears.fit_many(counts, extents)
        held = alone.held & (counts <= self._capacity)
        if not held.all():
            executions = self._optimum(requests, members[held]) if held.any() else []
            lone = members[~held].tolist()
            return executions + [self._execution([member], requests) for member in lone]
        orders = self._orders(counts, extents, alone)
        best, runs = _cheapest_runs(self._seconds(counts, extents, orders))
        ordered = members[orders[best]].tolist()
        return [self._execution(ordered[run], requests) for run in runs]

    def _execution(self, members: Sequence[int], requests: _RequestSizes) -> Execution:
        return self.execution_of(members, requests.rows, requests.sizes)

    def _orders(self, counts: Ints, extents: Mapping[str, Ints], alone: Fitted) -> NDArray[np.intp]:
        """The orders that are tried, [orders, n].

        With one axis, by size. With more, by the work of a row, and by each axis, at the sizes of
        the gears that requests would have alone: requests of one gear are neighbours. Ties go by
        the request's own sizes, its rows, and its arrival last, so that the total does not depend
        on the order of arrival.
        """
        ties = (counts, *extents.values())
        if len(extents) <= 1:
            return np.lexsort(ties)[None]
        keys = (self._cost.elements_many(alone.extents), *alone.extents.values())
        return np.stack([np.lexsort((*ties, key)) for key in keys])

    def _seconds(
        self, counts: Ints, extents: Mapping[str, Ints], orders: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """[orders, n, n]: the time of the run from request i to j at [:, i, j]; inf: no execution.

        Below the diagonal it means nothing.
        """
        ends = np.cumsum(counts[orders], axis=1)
        rows = ends[:, None, :] - (ends - counts[orders])[:, :, None]
        largest = {axis: own[orders][:, None, :] for axis, own in extents.items()}
        if len(extents) > 1:  # with one axis, the last of a run is its largest
            inside = np.tri(orders.shape[1], dtype=np.int64).T
            for axis, own in largest.items():
                within = own * inside
                largest[axis] = np.maximum.accumulate(within, axis=2, out=within)
        fitted = self._gears.fit_many(rows, largest)
        seconds = self._cost.seconds_many(fitted.rows, fitted.extents)
        np.copyto(seconds, np.inf, where=~(fitted.held & (rows <= self._capacity)))
        return seconds

    def _before_deadlines(
        self,
        requests: _RequestSizes,
        optimum: list[Execution],
        now: float,
        deadlines: Sequence[float],
    ) -> list[Execution]:
        """The best plan of the family that the module describes; k = 0 is `optimum`."""
        alone = [
            now + self._execution([member], requests).seconds for member in range(len(deadlines))
        ]
        due = [d if end <= d else math.inf for end, d in zip(alone, deadlines, strict=True)]
        urgency = np.argsort(due, kind="stable")
        plans = [_earliest_first(optimum, due)]
        for k in _cuts(len(due) - due.count(math.inf), len(due)):
            first, rest = (self._optimum(requests, part) for part in np.split(urgency, [k]))
            plans.append(_earliest_first(first, due) + _earliest_first(rest, due))
        return min(plans, key=lambda plan: (_missed(plan, now, due), _total(plan)))


class _RequestSizes:
    """The requests as they were given, and as arrays."""

    def __init__(self, rows: Sequence[int], sizes: Mapping[str, Sequence[int]]) -> None:
        self.rows = rows
        self.sizes = sizes
        self.counts = np.array(rows, np.int64)
        self.extents = {axis: np.array(own, np.int64) for axis, own in sizes.items()}


def _cheapest_runs(seconds: NDArray[np.float64]) -> tuple[int, list[slice]]:
    """The order in which the cheapest cut into runs exists, and the runs.

    seconds: [orders, n, n], see `_seconds`; finite on the diagonals.
    """
    n = seconds.shape[1]
    best = np.full((len(seconds), n + 1), np.inf)  # [:, j]: of the first j requests
    best[:, 0] = 0.0
    for first in range(n):
        beyond = best[:, first + 1 :]
        np.minimum(beyond, best[:, first, None] + seconds[:, first, first:], out=beyond)
    order = int(best[:, n].argmin())
    total, of_run = best[order], seconds[order]
    runs, end = [], n
    while end:
        # Of runs that are equally good, the longest.
        good = total[:end] + of_run[:end, end - 1] <= total[end] * _ROUNDING
        first = int(good.argmax())
        runs.append(slice(first, end))
        end = first
    return order, runs


def _earliest_first(executions: Sequence[Execution], deadlines: Sequence[float]) -> list[Execution]:
    """By earliest deadline; of those without any, or with the same, the longest first."""
    return sorted(
        executions,
        key=lambda execution: (
            min([deadlines[member] for member in execution.members]),
            -execution.seconds,
            execution.members,
        ),
    )


def _missed(plan: Sequence[Execution], now: float, deadlines: Sequence[float]) -> int:
    """How many requests are answered too late if the plan starts now."""
    missed = 0
    for execution in plan:
        now += execution.seconds
        missed += sum([deadlines[member] < now for member in execution.members])
    return missed


def _total(plan: Sequence[Execution]) -> float:
    return sum(execution.seconds for execution in plan)


def _cuts(urgent: int, n: int) -> list[int]:
    """How many of the most urgent of `n` requests come first in the plans compared."""
    powers = [1 << exponent for exponent in range(urgent.bit_length())]
    # All of the request batch first is none of it first.
    return [k for k in dict.fromkeys((*powers, urgent)) if 0 < k < n]
