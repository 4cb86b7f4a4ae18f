"""Reproducible answers: each request is executed at its own gear, alone or with others.

Kernels are chosen by shapes, so an answer only has the same bits if the shape of its execution does
not depend on other requests. A request's own gear is the gear that holds it alone. All rows of the
gear are executed, data or padding, and only requests of one gear share an execution. Safe from any
thread.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from ge_runtime.batching.cost import CostModel
from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.batching.partition import (
    BatchPartitioner,
    Execution,
    RequestSizes,
    earliest_first,
    greedy_runs,
)


class OwnGearPartitioner:
    """Splits batches into executions of requests that have the same gear.

    An execution takes the same time with any number of filled rows, so no times are compared:
    requests fill executions in the order of their deadlines.
    """

    def __init__(self, partitioner: BatchPartitioner, gears: Gears) -> None:
        """Prepare for one model.

        Args:
            partitioner: Predicts times, and executes requests that no gear holds.
            gears: Gears that are equal in all extents have the same number of rows.
        """
        self._partitioner = partitioner
        self._gears = gears

    def use(self, cost: CostModel) -> None:
        self._partitioner.use(cost)

    def plan(self, requests: RequestSizes) -> list[Execution]:
        """Return the executions, earliest deadline first, then the longest.

        A request that no gear holds gets its own execution of exactly its size.
        """
        count = len(requests.rows)
        due = list(requests.deadlines or [math.inf] * count)
        groups: dict[Hashable, tuple[Gear, list[int]]] = {}
        executions: list[Execution] = []
        for member in sorted(range(count), key=due.__getitem__):
            gear = self._own_gear(member, requests)
            if gear is None:
                executions.append(self.execution_of([member], requests))
                continue
            kind = None if requests.kinds is None else requests.kinds[member]
            key = (gear.rows, *gear.extents.values(), kind)
            groups.setdefault(key, (gear, []))[1].append(member)
        for gear, members in groups.values():
            runs = greedy_runs([requests.rows[member] for member in members], gear.rows)
            executions += [
                self._partitioner.execution_at(
                    gear, tuple(sorted([members[place] for place in run]))
                )
                for run in runs
            ]
        return earliest_first(executions, due)

    def execution_of(self, members: Sequence[int], requests: RequestSizes) -> Execution:
        """Return an execution of some members of a planned execution, at the planned size."""
        gear = self._own_gear(members[0], requests)
        if gear is None:
            return self._partitioner.execution_of(members, requests)
        return self._partitioner.execution_at(gear, tuple(sorted(members)))

    def execution_alone(self, member: int, rows: int, sizes: Mapping[str, int]) -> Execution:
        return self._partitioner.execution_alone(member, rows, sizes)

    def with_a_pair(self, plan: list[Execution], requests: RequestSizes) -> list[Execution]:
        return plan  # requests that may share an execution already do

    def _own_gear(self, member: int, requests: RequestSizes) -> Gear | None:
        sizes = {axis: own[member] for axis, own in requests.sizes.items()}
        return self._gears.fit(requests.rows[member], sizes)
