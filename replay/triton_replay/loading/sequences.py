"""Sequences of a load: their ids, their lengths and their requests. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from triton_replay.errors import ReplayError

DEFAULT_LENGTH = 20


@dataclass(frozen=True)
class SequencePlan:
    """The properties of sequences.

    Args:
        streams: Indexes of the requests of each stream of data. Sequences use the streams in
            turn.
        length: Mean length of a sequence; None for the length of its stream.
        variation: Largest deviation from the mean length, as a share.
        first: First id.
        end: End of the range of ids, exclusive; None for no end.
    """

    streams: Sequence[Sequence[int]]
    length: int | None
    variation: float
    first: int
    end: int | None

    def check(self, concurrent: int) -> None:
        """Raise ReplayError if there are fewer ids than concurrent sequences."""
        if self.end is not None and self.end - self.first < concurrent:
            raise ReplayError(
                f"--sequence-id-range: found {self.end - self.first} ids, expected at least "
                f"{concurrent}, the number of concurrent sequences"
            )


class Running:
    """The current sequence of a slot; at its end the next one starts."""

    __slots__ = ("_left", "_position", "_source", "_stream", "id")

    def __init__(self, source: Sequences) -> None:
        self._source = source
        self._left = self._position = self.id = 0
        self._stream: Sequence[int] = ()

    def step(self) -> tuple[int, int, bool, bool]:
        """Advance; return the index of the data, the id, and the flags `start` and `end`."""
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
        """Skip the remaining requests, because the server may have ended a failed sequence."""
        self._left = 0

    def shorten(self) -> None:
        """Make the next request the last one."""
        self._left = 1

    @property
    def is_open(self) -> bool:
        """True while its last request is still to be sent."""
        return self._left > 0


class Sequences:
    """Assigns ids that no other running sequence has."""

    def __init__(self, plan: SequencePlan, chance: random.Random) -> None:
        self._plan = plan
        self._chance = chance
        self._started = 0
        self._next = plan.first
        self._taken: set[int] = set()

    def begin(self) -> tuple[int, Sequence[int], int]:
        """Return the id, the data and the length of a new sequence.

        Raises:
            ReplayError: All ids are in use.
        """
        plan = self._plan
        plan.check(len(self._taken) + 1)
        while self._next in self._taken or self._next == plan.end:
            self._next = plan.first if self._next == plan.end else self._next + 1
        found = self._next
        self._taken.add(found)
        self._next += 1
        stream = plan.streams[self._started % len(plan.streams)]
        self._started += 1
        if plan.length is None:
            return found, stream, len(stream)
        share = 1 + plan.variation * (2 * self._chance.random() - 1)
        return found, stream, max(1, round(plan.length * share))

    def release(self, sequence: int) -> None:
        """Make an id available again."""
        self._taken.discard(sequence)
