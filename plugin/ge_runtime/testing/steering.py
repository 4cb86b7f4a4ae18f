"""Which requests share an execution, decided by a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from ge_runtime.batching.gears import Gears
from ge_runtime.batching.partition import Execution
from ge_runtime.scheduling.request_batch import Partitioner

Groups: TypeAlias = Sequence[Sequence[int]]
"""Places in a request batch, by execution; each in one."""

Choice: TypeAlias = "Callable[[int, Callable[[Sequence[int]], bool]], Groups]"
"""The groups of a batch of so many requests, made of what may share an execution."""

MOST_TOGETHER: Final = 8
"""Requests in an execution that was chosen at random."""


class Steered:
    """See `scheduling.request_batch.Partitioner`: the groups that a choice makes."""

    def __init__(self, partitioner: Partitioner, gears: Gears, capacity: int) -> None:
        """partitioner: the model's own. capacity: the most rows of an execution."""
        self._partitioner = partitioner
        self._gears = gears
        self._capacity = capacity
        self.choice: Choice | None = None
        """None: the model's own partitioner decides."""
        self.groups: Groups = ()
        """Of the last request batch, in order of execution."""

    def plan(
        self,
        rows: Sequence[int],
        sizes: Mapping[str, Sequence[int]],
        *,
        now: float = 0.0,
        deadlines: Sequence[float] | None = None,
    ) -> list[Execution]:

        def fits(members: Sequence[int]) -> bool:
            total = sum(rows[member] for member in members)
            largest = {axis: max(own[member] for member in members) for axis, own in sizes.items()}
            return total <= self._capacity and self._gears.fit(total, largest) is not None

        if self.choice is None:
            executions = self._partitioner.plan(rows, sizes, now=now, deadlines=deadlines)
        else:
            groups = self.choice(len(rows), fits)
            executions = [self._partitioner.execution_of(group, rows, sizes) for group in groups]
        self.groups = [execution.members for execution in executions]
        return executions

    def execution_of(
        self, members: Sequence[int], rows: Sequence[int], sizes: Mapping[str, Sequence[int]]
    ) -> Execution:
        return self._partitioner.execution_of(members, rows, sizes)


def alone(count: int, fits: Callable[[Sequence[int]], bool]) -> Groups:
    """See Choice: each request in an execution of its own."""
    return [[place] for place in range(count)]


def at_random(rng: np.random.Generator) -> Choice:
    """See Choice: random groups in random order."""

    def choose(count: int, fits: Callable[[Sequence[int]], bool]) -> Groups:
        left = rng.permutation(count).tolist()
        groups = []
        while left:
            group, most = [left.pop()], rng.integers(2, MOST_TOGETHER + 1)
            while left and len(group) < most and fits([*group, left[-1]]):
                group.append(left.pop())
            groups.append(group)
        return groups

    return choose


def exactly(groups: Groups) -> Choice:
    """See Choice: these groups."""
    return lambda count, fits: groups
