"""Batches of packed requests: where there is no padding, nobody has to be kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ge_runtime.batching.partition import BatchPartitioner, Execution


class InOrder:
    """Cuts request batches in order of arrival into executions as large as they may be.

    Rows that are packed cost the same in any company, so each execution saved is time saved.
    """

    def __init__(self, partitioner: BatchPartitioner, capacity: int) -> None:
        """capacity: the most rows of several requests in one execution."""
        self._partitioner = partitioner
        self._capacity = capacity

    def plan(
        self,
        rows: Sequence[int],
        sizes: Mapping[str, Sequence[int]],
        *,
        now: float = 0.0,
        deadlines: Sequence[float] | None = None,
    ) -> list[Execution]:
        """Deadlines do not change the order: the oldest requests go first."""
        return [self.execution_of(run, rows, sizes) for run in runs(rows, self._capacity)]

    def execution_of(
        self, members: Sequence[int], rows: Sequence[int], sizes: Mapping[str, Sequence[int]]
    ) -> Execution:
        return self._partitioner.execution_of(members, rows, sizes)


def runs(rows: Sequence[int], capacity: int) -> list[range]:
    """The batch cut into runs of neighbours, each of at most `capacity` rows or a single request.

    rows: of each request, in order of arrival. Greedy, so that order is kept and no run could take
    the first request of the next.
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
