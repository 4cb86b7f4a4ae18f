"""Early answers: those of a request batch that leave before its last execution has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ge_runtime.clock import Clock
from ge_runtime.counts import Counts
from ge_runtime.scheduling.request_batch import Answered

SENDING_S: Final = 150e-6
"""What it costs to send one answer by itself, measured on tritonserver: CPU time of all its
processes, more than in a list of answers."""

WORTH_SENDING: Final = 10
"""Answers leave early if others are still executed for this many times what sending them costs."""


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
