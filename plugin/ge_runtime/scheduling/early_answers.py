"""Early answers: those of a request batch that leave before its last execution has ended.

What follows from them for the order of the executions: numbers only, no clock. The mean wait is
least if executions run by their time per request, the least first (W. E. Smith, Various optimizers
for single-stage production, 1956). Two things limit that:

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
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from ge_runtime.clock import Clock
from ge_runtime.counts import Counts

SENDING_S: Final = 150e-6
"""What it costs to send one answer by itself, measured on tritonserver: CPU time of all its
processes, more than in a list of answers."""

WORTH_SENDING: Final = 10
"""Answers leave early if others are still executed for this many times what sending them costs."""


FAIRNESS: Final = 2.0
"""How many times later than in the order of arrival an execution may end."""

_ROUNDING: Final = 1 + 1e-9  # ends are sums of times, added up in other orders


class Answered(NamedTuple):
    """Requests of a batch that have their answers now."""

    members: Sequence[int]
    """Places in the batch, ascending."""
    seconds: float
    """Predicted, of the execution that has ended with them; 0.0 if it goes on."""


class EarlyAnswers:
    """Lets the answers of one request batch leave, and counts how long they took.

    For one thread.
    """

    def __init__(
        self,
        count: int,
        seconds: float,
        executors: int,
        let_go: Callable[[Sequence[int]], None] | None,
        clock: Clock,
    ) -> None:
        """count: the requests of the batch, which begins now.

        seconds: predicted, of all executions, which so many executors share.
        let_go: takes requests, places in the batch, that are answered while others are still
        executed; None: all leave in the end.
        """
        self._count = self._left = count
        self._left_s = seconds / executors
        self._executors = executors
        self._let_go = let_go
        self._clock = clock
        self._start = clock.now()
        self._departures: list[tuple[float, int]] = []

    def hear(self, answered: Answered) -> None:
        """These requests are answered; each is told once."""
        count = len(answered.members)
        self._left -= count
        self._left_s -= answered.seconds / self._executors
        worth = self._left_s >= count * SENDING_S * WORTH_SENDING
        # The last ones need not leave by themselves, whatever was predicted.
        if self._let_go is not None and count and self._left and worth:
            self._let_go(answered.members)
            self._departures.append((self._clock.now(), count))

    def counts(self) -> Counts:
        """Of the batch, which ends now."""
        end = self._clock.now()
        early_seconds = sum((end - time) * count for time, count in self._departures)
        return Counts(
            early_answers=sum(count for _, count in self._departures),
            early_seconds=early_seconds,
            answer_seconds=(end - self._start) * self._count - early_seconds,
        )


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
