"""Which requests share a launch, decided by a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from ge_runtime.batching.gears import Gears
from ge_runtime.batching.regroup import Launch
from ge_runtime.scheduling.window import Grouping

Groups: TypeAlias = Sequence[Sequence[int]]
"""Places in a window, by launch; each in one."""

Choice: TypeAlias = "Callable[[int, Callable[[Sequence[int]], bool]], Groups]"
"""The groups of a window of so many requests, made of what may share a launch."""

MOST_TOGETHER: Final = 8
"""Requests in a launch that was chosen at random."""


class Steered:
    """See `scheduling.window.Grouping`: the groups that a choice makes. For one thread."""

    def __init__(self, grouping: Grouping, gears: Gears, capacity: int) -> None:
        """grouping: the model's own. capacity: the most rows of a launch."""
        self._grouping = grouping
        self._gears = gears
        self._capacity = capacity
        self.choice: Choice | None = None
        """None: the model's own grouping decides."""
        self.groups: Groups = ()
        """Of the last window, in order of execution."""

    def plan(
        self,
        rows: Sequence[int],
        sizes: Mapping[str, Sequence[int]],
        *,
        now: float = 0.0,
        deadlines: Sequence[float] | None = None,
    ) -> list[Launch]:

        def fits(members: Sequence[int]) -> bool:
            total = sum(rows[member] for member in members)
            largest = {axis: max(own[member] for member in members) for axis, own in sizes.items()}
            return total <= self._capacity and self._gears.fit(total, largest) is not None

        if self.choice is None:
            launches = self._grouping.plan(rows, sizes, now=now, deadlines=deadlines)
        else:
            groups = self.choice(len(rows), fits)
            launches = [self._grouping.launch_of(group, rows, sizes) for group in groups]
        self.groups = [launch.members for launch in launches]
        return launches

    def launch_of(
        self, members: Sequence[int], rows: Sequence[int], sizes: Mapping[str, Sequence[int]]
    ) -> Launch:
        return self._grouping.launch_of(members, rows, sizes)


def alone(count: int, fits: Callable[[Sequence[int]], bool]) -> Groups:
    """See Choice: each request in a launch of its own."""
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
