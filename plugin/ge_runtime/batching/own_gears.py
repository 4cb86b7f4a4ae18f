"""Reproducible answers: each request is executed at its own gear, alone or in company.

Kernels are chosen by shapes, so an answer has the same bits only if the shape of its execution
does not depend on who else is there. A request's own gear is the one that would hold it alone; all
rows of the gear are executed, be they data or padding, and only requests of one gear share an
execution. Numbers only; safe from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

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
    """Cuts batches into executions of requests that have the same gear.

    Executions of one gear take the same time however many of their rows are data, so there is
    nothing to weigh: requests fill them, those with the earliest deadlines first.
    """

    def __init__(self, partitioner: BatchPartitioner, gears: Gears) -> None:
        """partitioner: predicts, and has the sizes of requests that no gear holds.

        gears: of equal extents none differ in their rows.
        """
        self._partitioner = partitioner
        self._gears = gears

    def use(self, cost: CostModel) -> None:
        self._partitioner.use(cost)

    def plan(self, requests: RequestSizes) -> list[Execution]:
        """The executions, earliest deadline first, then the longest.

        A request that no gear holds gets an execution of its own at exactly its size.
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
                self._partitioner.execution_at(gear, [members[place] for place in run])
                for run in runs
            ]
        return earliest_first(executions, due)

    def execution_of(self, members: Sequence[int], requests: RequestSizes) -> Execution:
        """The execution of some of those that share one, which is as large as with all of them."""
        gear = self._own_gear(members[0], requests)
        if gear is None:
            return self._partitioner.execution_of(members, requests)
        return self._partitioner.execution_at(gear, members)

    def with_a_pair(self, plan: list[Execution], requests: RequestSizes) -> list[Execution]:
        return plan  # what may share an execution does already

    def _own_gear(self, member: int, requests: RequestSizes) -> Gear | None:
        sizes = {axis: own[member] for axis, own in requests.sizes.items()}
        return self._gears.fit(requests.rows[member], sizes)
