"""Which requests of a window share an execution: pure numbers in, index ranges out."""

from __future__ import annotations

from collections.abc import Sequence


def group(rows: Sequence[int], capacity: int) -> list[range]:
    """The window cut into runs of neighbours, each of at most `capacity` rows.

    rows: of each request, in order of arrival, each 1 to `capacity`. Greedy, so that order is
    kept and no run could take the first request of the next.
    """
    runs: list[range] = []
    start = taken = 0
    for index, count in enumerate(rows):
        if taken + count > capacity:
            runs.append(range(start, index))
            start, taken = index, 0
        taken += count
    if taken:
        runs.append(range(start, len(rows)))
    return runs
