"""Sequences: their ids, their lengths, and which request of which comes next. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from triton_replay.errors import ReplayError

DEFAULT_LENGTH = 20


@dataclass(frozen=True)
class SequencePlan:
    """How sequences are made up.

    streams: for each stream of data the indexes of its requests; sequences take them in turns.
    length: of a sequence on average; None for the length of its data.
    variation: by which share lengths differ at most.
    first, end: ids lie between them, without `end`; None for no end.
    """

    streams: Sequence[Sequence[int]]
    length: int | None
    variation: float
    first: int
    end: int | None

    def check(self, at_once: int) -> None:
        """Raise ReplayError if there are fewer ids than sequences at once."""
        if self.end is not None and self.end - self.first < at_once:
            raise ReplayError(
                f"--sequence-id-range: found {self.end - self.first} ids, expected at least "
                f"{at_once}: so many sequences are under way at once"
            )


class Running:
    """A sequence under way, one after the other: the place of each is a slot."""

    __slots__ = ("_left", "_position", "_source", "_stream", "id")

    def __init__(self, source: Sequences) -> None:
        self._source = source
        self._left = self._position = self.id = 0
        self._stream: Sequence[int] = ()

    def step(self) -> tuple[int, int, bool, bool]:
        """The next request: which of the data, the id, whether it starts, whether it ends."""
        start = self._left == 0
        if start:
            self._source.release(self.id)
            self.id, self._stream, self._left = self._source.begin()
            self._position = 0
        index = self._stream[self._position % len(self._stream)]
        self._position += 1
        self._left -= 1
        return index, self.id, start, self._left == 0

    def give_up(self) -> None:
        """Forget the rest: a request failed, so that the server may have ended it."""
        self._left = 0

    def shorten(self) -> None:
        """Let the next request be its last."""
        self._left = 1

    @property
    def is_open(self) -> bool:
        """Whether its last request was not sent yet."""
        return self._left > 0


class Sequences:
    """Gives out ids that no other sequence has at the time."""

    def __init__(self, plan: SequencePlan, chance: random.Random) -> None:
        self._plan = plan
        self._chance = chance
        self._begun = 0
        self._next = plan.first
        self._taken: set[int] = set()

    def begin(self) -> tuple[int, Sequence[int], int]:
        """The id, the data and the length of a new sequence."""
        plan = self._plan
        plan.check(len(self._taken) + 1)
        while self._next in self._taken or self._next == plan.end:
            self._next = plan.first if self._next == plan.end else self._next + 1
        found = self._next
        self._taken.add(found)
        self._next += 1
        stream = plan.streams[self._begun % len(plan.streams)]
        self._begun += 1
        if plan.length is None:
            return found, stream, len(stream)
        share = 1 + plan.variation * (2 * self._chance.random() - 1)
        return found, stream, max(1, round(plan.length * share))

    def release(self, sequence: int) -> None:
        """Let the id be given out again."""
        self._taken.discard(sequence)
