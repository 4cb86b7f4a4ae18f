"""The order of tasks that streams, events and the host's waiting establish, and who uses what.

Pure bookkeeping without threads or time. Each task of a stream has a number, from 1. A stream knows
of every stream up to which task it comes after; events carry that knowledge from one stream to
another, waiting carries it to the host. That a task happens to be over is no knowledge: whoever
relies on it has a race, whether or not it is lost today. Callers hold the process's lock.

The host is taken for one: what one of its threads waited for is known to all. Whether they told
each other cannot be seen from here, so a race between two host threads may be missed, but nothing
ordered is ever called a race.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

Range: TypeAlias = tuple[int, int]
"""Address and bytes."""

HOST: Final = 0
"""Takes a stream's place in a `Use` by the host, which is over when it has begun."""

OWNER: Final = -1
"""Takes it where the memory itself goes, which no later use survives."""

Knowledge: TypeAlias = Mapping[int, int]
"""Stream -> number of its last task that is known to be over."""


class Ordering:
    """The knowledge of all streams and of the host."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # of living streams
        self._streams: dict[int, dict[int, int]] = {}
        self._host: dict[int, int] = {}
        self._held: set[int] = set()

    def add(self, stream: int) -> None:
        """A stream is made, `stream` a number never used before."""
        self._last[stream] = 0
        self._host[stream] = 0
        self._streams[stream] = {}

    def drop(self, stream: int) -> None:
        """A stream is gone, all its tasks over and known to be."""
        del self._last[stream], self._host[stream], self._streams[stream]
        for known in self._streams.values():
            known.pop(stream, None)

    def submit(self, stream: int) -> int:
        """One more task on `stream`; its number."""
        number = self._last[stream] + 1
        self._last[stream] = number
        return number

    def last(self, stream: int) -> int:
        """The number of the last task of `stream`, 0 if it had none."""
        return self._last[stream]

    def upto(self, stream: int) -> Knowledge:
        """What whoever waits for all tasks submitted to `stream` so far then knows."""
        return {**self._streams[stream], stream: self._last[stream]}

    def learn(self, stream: int, knowledge: Knowledge) -> None:
        """Tasks submitted to `stream` from now on come after all of `knowledge`."""
        self._merge(self._streams[stream], knowledge)

    def observe(self, knowledge: Knowledge) -> None:
        """The host waited for `knowledge`: all that is submitted from now on comes after it."""
        self._merge(self._host, knowledge)

    def hold(self, stream: int) -> None:
        """A callback of the host holds the stream up: what is left of it begins after `let_go`."""
        self._held.add(stream)

    def let_go(self, stream: int) -> None:
        """Undo `hold`."""
        self._held.discard(stream)

    def is_over(self, stream: int, number: int) -> bool:
        """Whether the host knows that task `number` of `stream` is over."""
        return self._host.get(stream, number) >= number

    def comes_after(self, stream: int, other: int, number: int) -> bool:
        """Whether what `stream` (HOST, OWNER) begins now does not meet task `number` of `other`."""
        return (
            stream == other
            or (stream > HOST and self._streams[stream].get(other, 0) >= number)
            or (stream == HOST and other in self._held)
            or self.is_over(other, number)
        )

    def _merge(self, known: dict[int, int], knowledge: Knowledge) -> None:
        for stream, number in knowledge.items():
            if stream in self._last and number > known.get(stream, 0):
                known[stream] = number


class Use(NamedTuple):
    """Bytes `first` up to `end` of a block, read or written by tasks of a stream."""

    stream: int
    first: int
    end: int
    write: bool

    def in_words(self) -> str:
        """For messages: "writes bytes 0 to 64"."""
        return f"{'writes' if self.write else 'reads'} bytes {self.first:,} to {self.end:,}"


class Uses:
    """Who of the streams uses a block of memory.

    Of equal uses only the last is kept: whoever comes after it comes after all before it. So its
    size is bounded by the distinct ranges in use, and `conflict` forgets what the host knows.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Use, int] = {}

    def add(self, use: Use, number: int) -> None:
        """Task `number` of the stream has this use."""
        self._last[use] = number

    def conflict(self, ordering: Ordering, use: Use) -> Use | None:
        """Another use of the same bytes that `use`, beginning now, does not come after, if any.

        Two reads never conflict.
        """
        over = None
        found = None
        for other, number in self._last.items():
            if ordering.is_over(other.stream, number):
                over = [other] if over is None else [*over, other]
            elif (
                (use.write or other.write)
                and other.first < use.end
                and use.first < other.end
                and not ordering.comes_after(use.stream, other.stream, number)
            ):
                found = other
                break
        if over is not None:
            for other in over:
                del self._last[other]
        return found


class Flights:
    """The executions that a model, a dataset or a buffer was submitted with.

    That one happens to be over is no knowledge (see `ordering`): it counts until the host waited.
    Callers hold the process's lock.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, stream: int, number: int) -> None:
        """Task `number` of the stream uses it."""
        self._last[stream] = number

    def pending(self, ordering: Ordering) -> bool:
        """Whether the host may not count on the end of one of them."""
        return bool(self._left(ordering))

    def unordered(self, ordering: Ordering, stream: int) -> bool:
        """Whether one is on another stream, and what `stream` gets next does not come after it."""
        return any(
            not ordering.comes_after(stream, other, number)
            for other, number in self._left(ordering).items()
        )

    def _left(self, ordering: Ordering) -> dict[int, int]:
        self._last = {
            stream: number
            for stream, number in self._last.items()
            if not ordering.is_over(stream, number)
        }
        return self._last
