"""The batch partitioner: decides which requests share an execution, at which gears, in which order.

The batch is first divided into groups with equal sizes along the axes that are not padded. Each
group is sorted and cut into runs of neighbours; each run is one execution. Dynamic programming
finds the cuts with the least predicted time. The partitioner uses numbers only: no clock, no
tensors.

The plan of each group is optimal as follows, where "axes" are the padded axes:

- For every order that is tried, the partition into runs is the optimum of the cost model, given
  the gears and the capacity.
- With one axis, batches of one-row requests get the optimum over all partitions into sets. Proof:
  rank the sets of any partition by their longest member, and fill them again with the requests
  sorted from the longest on, keeping the sizes of the sets. No set's longest member grows, and the
  sets are runs now. (This requires that the time of a set does not decrease when its longest member
  grows. It can decrease only if one gear table has both rows and the axis, and some input lacks the
  axis.)
- With several axes, or several rows per request, the optimum over sets is a packing problem, and
  may be better than all runs of the orders tried.

The same holds for the batch. No execution contains requests of two groups, so the plan of the batch
consists of independent plans, one for each group, and its time is the sum of their times.

Deadlines: if the optimum, executed earliest deadline first, meets all deadlines, it is the plan.
Otherwise the best of a family of plans is used: the k requests with the earliest deadlines come
first, all others after them; each part is optimal in itself and is executed earliest deadline
first. k is 0, 1, 2, 4, 8, ..., and the number of requests with deadlines. The best plan misses the
fewest deadlines, and among such plans ends first. A deadline that its request would miss even if
executed alone and immediately is missed in every plan and ignored: it must not make others late.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Fitted, Gear, Gears, Ints
from ge_runtime.batching.groups import equal_groups

_ROUNDING: Final = 1 + 1e-12  # sums of times whose ratio is smaller count as equal


_MOST_ALONE: Final = 1024
"""Largest number of executions of single requests that are kept for reuse."""


class Execution(NamedTuple):
    """One execution: its requests and its size."""

    members: tuple[int, ...]
    """Indexes of the requests in the batch, ascending."""
    gear: Gear
    """The size, padding included."""
    seconds: float
    """Predicted time."""
    valid: int | None = None
    """Elements without padding, for a graph that removes padding: see CostModel."""


class RequestSizes(NamedTuple):
    """The properties of a batch's requests that partitioning needs."""

    rows: Sequence[int]
    """Number of rows of each request, at least 1."""
    sizes: Mapping[str, Sequence[int]]
    """By axis, the size that each request needs along it."""
    deadlines: Sequence[float] | None = None
    """Deadline of each request in seconds on the clock of `now`; inf if it has none. None if no
    request has one."""
    now: float = 0.0
    kinds: Sequence[Hashable] | None = None
    """Kind of each request; only requests of one kind share an execution. None for one kind."""


class Partitioner(Protocol):
    """Splits batches of requests into executions. Safe from any thread."""

    def use(self, cost: CostModel) -> None:
        """Use another cost model from now on; a plan in progress may use both."""

    def plan(self, requests: RequestSizes) -> list[Execution]:
        """Return the executions of a batch, in order; each request is in one of them."""

    def execution_of(self, members: Sequence[int], requests: RequestSizes) -> Execution:
        """Return the execution of `members`, indexes in the batch, regardless of its cost."""

    def execution_alone(self, member: int, rows: int, sizes: Mapping[str, int]) -> Execution:
        """Return the execution of one request: its index in the batch, its rows and sizes."""

    def with_a_pair(self, plan: list[Execution], requests: RequestSizes) -> list[Execution]:
        """Return a plan in which two requests share an execution, if any two requests may.

        The two requests with the least predicted loss are chosen. In `plan` every request has its
        own execution.
        """


class BatchPartitioner:
    """Splits batches into the executions of least predicted time."""

    def __init__(
        self,
        gears: Gears,
        cost: CostModel,
        capacity: int,
        equal: Collection[str] = (),
        *,
        unpadded: bool = False,
        together: bool = False,
    ) -> None:
        """Prepare for one model.

        Args:
            gears: The sizes of executions.
            cost: The cost of executions.
            capacity: Largest number of rows of an execution.
            equal: Axes that are never padded.
            unpadded: True if the graph removes padding: see `valid` of CostModel.
            together: True if rows of equal sizes are never separated, because the states of the
                rows of an execution are kept together.
        """
        self._gears = gears
        self._together = together
        self.use(cost)
        self._capacity = capacity
        self._equal = tuple(equal)
        self._unpadded = unpadded

    def use(self, cost: CostModel) -> None:
        # Without growth, executions of equal sizes never take longer together.
        self._cost = replace(cost, growth_s=0.0) if self._together else cost
        # By index, rows and sizes. A new dict, as threads may add executions at the previous cost.
        self._alone: dict[tuple[object, ...], Execution] = {}

    def plan(self, requests: RequestSizes) -> list[Execution]:
        """Return the executions of a batch, in order; each request is in one of them.

        A request that no gear holds gets its own execution of exactly its size; so does a request
        with more rows than the capacity.

        Without deadlines, the longest execution is the first. With one executor their order does
        not matter, as all answers of a batch are sent after its last execution. With several
        executors this order ends soonest (within 4/3 of the optimum, R. L. Graham, Bounds on
        multiprocessing timing anomalies, 1969).
        """
        count = len(requests.rows)
        if not count:
            return []
        arrays = _SizeArrays(requests)
        optimum = self._optimum(arrays, np.arange(count))
        due = list(requests.deadlines or [math.inf] * count)
        plan = earliest_first(optimum, due)
        if _count_missed(plan, requests.now, due):
            plan = self._before_deadlines(arrays, optimum, due)
        return plan

    def execution_of(self, members: Sequence[int], requests: RequestSizes) -> Execution:
        """Return the execution of `members`, indexes in the batch, regardless of its cost.

        If no gear holds the members together, the execution has exactly the size that they need.
        """
        rows, sizes = requests.rows, requests.sizes
        # Lists instead of generators: for a few members sum and max are twice as fast.
        total = sum([rows[member] for member in members])
        extents = {axis: max([own[member] for member in members]) for axis, own in sizes.items()}
        gear = self._gears.fit(total, extents) or Gear(total, extents)
        valid = self._unpadded_elements(members, requests)
        return self.execution_at(gear, tuple(sorted(members)), valid)

    def execution_alone(self, member: int, rows: int, sizes: Mapping[str, int]) -> Execution:
        alone, key = self._alone, (member, rows, *sizes.items())
        execution = alone.get(key)
        if execution is None:
            gear = self._gears.fit(rows, sizes) or Gear(rows, sizes)
            if len(alone) >= _MOST_ALONE:
                alone.clear()
            valid = rows * self._cost.elements(sizes) if self._unpadded else None
            execution = alone[key] = self.execution_at(gear, (member,), valid)
        return execution

    def execution_at(
        self, gear: Gear, members: tuple[int, ...], valid: int | None = None
    ) -> Execution:
        """Return the execution of `members`, ascending, at a gear that holds them."""
        seconds = self._cost.seconds(gear.rows, gear.extents, valid)
        return Execution(members, gear, seconds, valid)

    def _unpadded_elements(self, members: Sequence[int], requests: RequestSizes) -> int | None:
        """Return the elements of the members without padding; None if padding is computed."""
        if not self._unpadded:
            return None
        total = 0
        for member in members:
            own = {axis: sizes[member] for axis, sizes in requests.sizes.items()}
            total += requests.rows[member] * self._cost.elements(own)
        return total

    def with_a_pair(self, plan: list[Execution], requests: RequestSizes) -> list[Execution]:
        alone = {execution.members[0]: execution for execution in plan}
        best, least = None, math.inf
        everyone = range(len(requests.rows))
        for group in equal_groups(everyone, requests.sizes, self._equal, requests.kinds):
            # Tries only neighbours in this order. With several axes the best two may not be
            # neighbours, but neighbours in size lose little.
            group.sort(key=lambda member: (alone[member].seconds, member))
            for pair in pairwise(group):
                execution = self.execution_of(pair, requests)
                rows = sum([requests.rows[member] for member in pair])
                if rows > self._capacity or self._gears.fit(rows, execution.gear.extents) is None:
                    continue
                loss = execution.seconds - sum([alone[member].seconds for member in pair])
                if loss < least:
                    best, least = execution, loss
        if best is None:
            return plan
        others = [own for member, own in alone.items() if member not in best.members]
        return [best, *others]

    def _optimum(self, arrays: _SizeArrays, members: NDArray[np.intp]) -> list[Execution]:
        """Return the executions of least total time for `members`, in any order."""
        requests = arrays.requests
        if not self._equal and requests.kinds is None:
            return self._group_optimum(arrays, members)
        executions: list[Execution] = []
        for group in equal_groups(members.tolist(), requests.sizes, self._equal, requests.kinds):
            if len(group) == 1:
                executions.append(self.execution_of(group, requests))
            else:
                executions += self._group_optimum(arrays, np.array(group))
        return executions

    def _group_optimum(self, arrays: _SizeArrays, members: NDArray[np.intp]) -> list[Execution]:
        """Return the executions of least total time for members of one group."""
        requests = arrays.requests
        counts = arrays.rows[members]
        extents = {axis: own[members] for axis, own in arrays.sizes.items()}
        alone = self._gears.fit_many(counts, extents)
        held = alone.held & (counts <= self._capacity)
        if not held.all():
            executions = self._group_optimum(arrays, members[held]) if held.any() else []
            lone = members[~held].tolist()
            return executions + [self.execution_of([member], requests) for member in lone]
        orders = self._orders(counts, extents, alone)
        best, runs = _cheapest_runs(self._seconds(counts, extents, orders))
        ordered = members[orders[best]].tolist()
        return [self.execution_of(ordered[run], requests) for run in runs]

    def _orders(self, counts: Ints, extents: Mapping[str, Ints], alone: Fitted) -> NDArray[np.intp]:
        """Return the orders to try, [orders, n].

        With one padded axis there is one order, by size. With several axes there is an order by the
        work of a row, and one by each axis. These orders use the size of the gear that a request
        would have alone, so that requests of one gear are neighbours. Ties are resolved by the
        request's own sizes, its rows, and last its arrival, so that the total does not depend on
        the order of arrival.
        """
        ties = (counts, *extents.values())
        padded = self._padded_axes(extents)
        if len(padded) <= 1:
            return np.lexsort(ties)[None]
        work = self._cost.elements_many(alone.extents)
        keys = (work, *(alone.extents[axis] for axis in padded))
        return np.stack([np.lexsort((*ties, key)) for key in keys])

    def _seconds(
        self, counts: Ints, extents: Mapping[str, Ints], orders: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return the time of the run from request i to j at [:, i, j], inf if it is impossible.

        The shape is [orders, n, n]. Values below the diagonal are meaningless.
        """
        ends = np.cumsum(counts[orders], axis=1)
        rows = ends[:, None, :] - (ends - counts[orders])[:, :, None]
        largest = {axis: own[orders][:, None, :] for axis, own in extents.items()}
        padded = self._padded_axes(extents)
        if len(padded) > 1:  # with one padded axis, the last of a run is its largest
            inside = np.tri(orders.shape[1], dtype=np.int64).T
            for axis in padded:
                within = largest[axis] * inside
                largest[axis] = np.maximum.accumulate(within, axis=2, out=within)
        fitted = self._gears.fit_many(rows, largest)
        valid: Ints | None = None
        if self._unpadded:
            work = np.broadcast_to(self._cost.elements_many(extents) * counts, counts.shape)[orders]
            upto = np.cumsum(work, axis=1)
            valid = upto[:, None, :] - (upto - work)[:, :, None]
        seconds = self._cost.seconds_many(fitted.rows, fitted.extents, valid)
        held = fitted.held
        if ends[0, -1] > self._capacity:  # the sum over all requests
            held = held & (rows <= self._capacity)
        if not held.all():
            np.copyto(seconds, np.inf, where=~held)
        return seconds

    def _padded_axes(self, axes: Iterable[str]) -> list[str]:
        """Return the axes along which the requests of a group may differ."""
        return [axis for axis in axes if axis not in self._equal]

    def _before_deadlines(
        self, arrays: _SizeArrays, optimum: list[Execution], deadlines: Sequence[float]
    ) -> list[Execution]:
        """Return the best plan of the family that the module describes; k = 0 is `optimum`."""
        requests, now = arrays.requests, arrays.requests.now
        alone = [
            now + self.execution_of([member], requests).seconds for member in range(len(deadlines))
        ]
        due = [d if end <= d else math.inf for end, d in zip(alone, deadlines, strict=True)]
        urgency = np.argsort(due, kind="stable")
        plans = [earliest_first(optimum, due)]
        for k in _urgent_counts(len(due) - due.count(math.inf), len(due)):
            first, rest = (self._optimum(arrays, part) for part in np.split(urgency, [k]))
            plans.append(earliest_first(first, due) + earliest_first(rest, due))
        return min(plans, key=lambda plan: (_count_missed(plan, now, due), _total_seconds(plan)))


class _SizeArrays:
    """The sizes of requests as arrays, which are only worth it for batches of several requests."""

    def __init__(self, requests: RequestSizes) -> None:
        self.requests = requests
        self.rows = np.array(requests.rows, np.int64)
        self.sizes = {axis: np.array(own, np.int64) for axis, own in requests.sizes.items()}


def _cheapest_runs(seconds: NDArray[np.float64]) -> tuple[int, list[slice]]:
    """Return the order with the cheapest cut into runs, and the runs.

    seconds: [orders, n, n], see `_seconds`; finite on the diagonals.
    """
    n = seconds.shape[1]
    best = np.full((len(seconds), n + 1), np.inf)  # [:, j]: time of the first j requests
    best[:, 0] = 0.0
    # Forward: add every run that starts at `first` to the best way to its start, for all its ends.
    for first in range(n):
        beyond = best[:, first + 1 :]
        np.minimum(beyond, best[:, first, None] + seconds[:, first, first:], out=beyond)
    order = int(best[:, n].argmin())
    total, of_run = best[order], seconds[order]
    runs, end = [], n
    # Backward: the chosen runs follow from the times again, so no table of them is kept.
    while end:
        # Among equally good runs, the longest.
        good = total[:end] + of_run[:end, end - 1] <= total[end] * _ROUNDING
        first = int(good.argmax())
        runs.append(slice(first, end))
        end = first
    return order, runs


def earliest_first(executions: Sequence[Execution], deadlines: Sequence[float]) -> list[Execution]:
    """Sort by earliest deadline; equal or missing deadlines by time, the longest first."""
    return sorted(
        executions,
        key=lambda execution: (
            min([deadlines[member] for member in execution.members]),
            -execution.seconds,
            execution.members,
        ),
    )


def _count_missed(plan: Sequence[Execution], now: float, deadlines: Sequence[float]) -> int:
    """Return how many requests are answered too late if the plan starts now."""
    missed = 0
    for execution in plan:
        now += execution.seconds
        missed += sum([deadlines[member] < now for member in execution.members])
    return missed


def _total_seconds(plan: Sequence[Execution]) -> float:
    return sum(execution.seconds for execution in plan)


def _urgent_counts(urgent: int, n: int) -> list[int]:
    """Return how many of the most urgent of `n` requests come first in the compared plans."""
    powers = [1 << exponent for exponent in range(urgent.bit_length())]
    # With all of the batch first, the plan is the same as with none first.
    return [k for k in dict.fromkeys((*powers, urgent)) if 0 < k < n]


class InOrderPartitioner:
    """Splits batches of packed requests in order of arrival, into executions as large as possible.

    Packed rows have no padding and their cost does not depend on other rows. So any requests with
    equal sizes along the axes that are not padded may share an execution, and every execution saved
    saves time. Deadlines do not change the order: the oldest requests are first.
    """

    def __init__(
        self, partitioner: BatchPartitioner, gears: Gears, equal: Collection[str] = ()
    ) -> None:
        """equal: axes that are never padded."""
        self._partitioner = partitioner
        self._gears = gears
        self._equal = tuple(equal)

    def use(self, cost: CostModel) -> None:
        self._partitioner.use(cost)

    def plan(self, requests: RequestSizes) -> list[Execution]:
        everyone = range(len(requests.rows))
        runs: list[list[int]] = []
        for group in equal_groups(everyone, requests.sizes, self._equal, requests.kinds):
            rows = [requests.rows[member] for member in group]
            sizes = {axis: requests.sizes[axis][group[0]] for axis in self._equal}
            runs += [[group[i] for i in run] for run in greedy_runs(rows, self._capacity(sizes))]
        return [self.execution_of(run, requests) for run in sorted(runs)]

    def _capacity(self, sizes: Mapping[str, int]) -> int:
        """Return the number of rows that a gear holds even if requests have the largest sizes.

        `sizes` are the sizes along axes that are not padded. With `oversize: fallback` there may be
        no such gear. Then requests that no gear holds are executed at their own size.
        """
        return self._gears.most_rows({**self._gears.limits, **sizes}) or self._gears.rows

    def execution_of(self, members: Sequence[int], requests: RequestSizes) -> Execution:
        return self._partitioner.execution_of(members, requests)

    def execution_alone(self, member: int, rows: int, sizes: Mapping[str, int]) -> Execution:
        return self._partitioner.execution_alone(member, rows, sizes)

    def with_a_pair(self, plan: list[Execution], requests: RequestSizes) -> list[Execution]:
        return plan  # requests that may share an execution already do


def greedy_runs(rows: Sequence[int], capacity: int) -> list[range]:
    """Cut a batch into runs of neighbours, each of at most `capacity` rows or a single request.

    Greedy, so that the order is kept and no run could include the first request of the next.

    Args:
        rows: Rows of each request, in order of arrival.
        capacity: Largest number of rows of a run.
    """
    cut: list[range] = []
    start = taken = 0
    for index, count in enumerate(rows):
        if taken and taken + count > capacity:
            cut.append(range(start, index))
            start, taken = index, 0
        taken += count
    if taken:
        cut.append(range(start, len(rows)))
    return cut
