"""The order of a request batch's executions, where each one's answers leave when it is done.

Numbers only, no clock. The mean wait is least if executions run by their time per request, the
least first (W. E. Smith, Various optimizers for single-stage production, 1956). Two things limit
that:

- **Deadlines**: what the given order answers in time is answered in time.
- **Fairness**: no execution ends later than `FAIRNESS` times the moment at which it would end if
  executions ran in the order of arrival, each at the place of its oldest request.

So each execution has a latest end, and the order is made from its last place on: of the executions
whose latest end is not before the end of that place, the one with the most time per request is put
there. Why there is always one: take an order that keeps all latest ends, and an execution that may
be the last. Moved to the end, it makes others earlier and keeps its own latest end: the order of
what is left keeps all of theirs. The given order keeps all ends of deadlines, and the order of
arrival all of fairness. The two together may contradict each other; then deadlines go first, and of
the executions whose deadlines allow it, that with the latest end by fairness goes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

FAIRNESS: Final = 2.0
"""How many times later than in the order of arrival an execution may end."""

_ROUNDING: Final = 1 + 1e-9  # ends are sums of times, added up in other orders


def earliest_answers(
    seconds: Sequence[float], members: Sequence[Sequence[int]], due: Sequence[float]
) -> list[int]:
    """The executions' places in the order to run them in; the given order is that of deadlines.

    seconds: predicted, of each execution. members: its requests by their places of arrival,
    ascending. due: of each request, in seconds from the start, inf for none.
    """
    count = len(seconds)
    ends = list(accumulate(seconds))
    # What is late in the given order is lost, and makes nothing else late.
    timely = [
        min((due[member] for member in own if due[member] >= end), default=math.inf)
        for own, end in zip(members, ends, strict=True)
    ]
    arrival = sorted(range(count), key=lambda place: members[place][0])
    fair = [0.0] * count
    for place, end in zip(arrival, accumulate(seconds[place] for place in arrival), strict=True):
        fair[place] = FAIRNESS * end * _ROUNDING
    left = sorted(
        range(count), key=lambda place: (seconds[place] / len(members[place]), members[place])
    )
    end, backwards = sum(seconds), []
    while left:
        # None by rounding alone: the first place, where all but nothing is left.
        in_time = [place for place in left if timely[place] * _ROUNDING >= end] or left
        chosen = next((place for place in reversed(in_time) if fair[place] >= end), None)
        if chosen is None:
            chosen = max(in_time, key=fair.__getitem__)
        backwards.append(chosen)
        left.remove(chosen)
        end -= seconds[chosen]
    return backwards[::-1]
