"""Early answers: answers sent before the last execution of their request batch has ended.

`earliest_answers` computes the order of executions. The mean waiting time is least if executions
run in the order of their time per request, the shortest first (W. E. Smith, Various optimizers for
single-stage production, 1956). Two constraints limit this:

- **Deadlines**: every answer that meets its deadline in the given order still meets it.
- **Fairness**: executions arrive in the order of their oldest requests. No execution ends later
  than `FAIRNESS` times its end in the order of arrival.

So each execution has a latest end. The order is built from its last place to its first. Of the
remaining executions, those that may end as late as the place ends are candidates; the candidate
with the most time per request gets the place. There is always a candidate. Proof: take an order
that satisfies all latest ends, and move an execution that may end last to the last place. All other
executions then end earlier or as before, so their order satisfies their latest ends. The given
order satisfies all deadlines, and the order of arrival satisfies fairness. Both constraints
together may be contradictory. Then deadlines take precedence: among the executions whose deadlines
allow a place, the execution with the latest end by fairness gets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from ge_runtime.clock import Clock
from ge_runtime.counts import Counts

SENDING_S: Final = 150e-6
"""Time to send one answer separately. Measured on tritonserver: the CPU time of all its processes
beyond the time for answers that are sent together."""

WORTH_SENDING: Final = 30
"""Answers are sent early if the remaining executions take this many times as long as sending.

Early answers then cost at most 3 % of the throughput of a server whose cores are all busy.
"""


FAIRNESS: Final = 2.0
"""An execution may end this many times later than in the order of arrival."""

_ROUNDING: Final = 1 + 1e-9  # ends are sums of times, added in different orders


class Answered(NamedTuple):
    """Requests of a batch that were just answered."""

    members: Sequence[int]
    """Indexes in the batch, ascending."""
    seconds: float
    """Predicted time of the execution that ended with these answers; 0.0 if it continues."""


class EarlyAnswers:
    """Sends the early answers of one request batch, and counts them. For one thread."""

    def __init__(
        self,
        count: int,
        seconds: float,
        executors: int,
        release: Callable[[Sequence[int]], None],
        clock: Clock,
    ) -> None:
        """Start the batch.

        Args:
            count: Number of requests of the batch.
            seconds: Predicted time of all executions.
            executors: Number of executors that share the executions.
            release: Receives the indexes of requests that are answered early.
            clock: Measures how early answers are sent.
        """
        self._count = self._remaining = count
        self._remaining_s = seconds / executors
        self._executors = executors
        self._release = release
        self._clock = clock
        self._start = clock.now()
        self._released: list[tuple[float, int]] = []  # (time, number of answers)

    def add(self, answered: Answered) -> None:
        """Note answered requests, each once, and send their answers if that is worth it."""
        count = len(answered.members)
        self._remaining -= count
        self._remaining_s -= answered.seconds / self._executors
        worth = self._remaining_s >= count * SENDING_S * WORTH_SENDING
        # The last answers are not early, even if the prediction says so.
        if count and self._remaining and worth:
            self._release(answered.members)
            self._released.append((self._clock.now(), count))

    def counts(self) -> Counts:
        """Return the counts of the batch, which ends now."""
        end = self._clock.now()
        early_seconds = sum((end - time) * count for time, count in self._released)
        return Counts(
            early_answers=sum(count for _, count in self._released),
            early_seconds=early_seconds,
            answer_seconds=(end - self._start) * self._count - early_seconds,
        )


def earliest_answers(
    seconds: Sequence[float], members: Sequence[Sequence[int]], due: Sequence[float]
) -> list[int]:
    """Return the order of executions for early answers, as indexes of `seconds`.

    Deadlines that the given order meets are still met.

    Args:
        seconds: Predicted time of each execution.
        members: The requests of each execution, as indexes in the order of arrival, ascending.
        due: Deadline of each request in seconds from the start; inf for none.
    """
    count = len(seconds)
    ends = list(accumulate(seconds))
    # A request that is late in the given order stays late, and must not delay other requests.
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
        # Only rounding errors can make this list empty, at the first place, whose end is near 0.
        in_time = [place for place in left if timely[place] * _ROUNDING >= end] or left
        chosen = next((place for place in reversed(in_time) if fair[place] >= end), None)
        if chosen is None:
            chosen = max(in_time, key=fair.__getitem__)
        backwards.append(chosen)
        left.remove(chosen)
        end -= seconds[chosen]
    return backwards[::-1]
