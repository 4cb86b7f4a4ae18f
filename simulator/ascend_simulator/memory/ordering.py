"""The order of tasks that streams, events and waits of the host establish, and uses of memory.

Pure bookkeeping without threads or time. Each task of a stream has a number, from 1. A stream
knows, for every stream, the last task after which it runs. Events carry this knowledge from one
stream to another, and waits carry it to the host. A finished task is not knowledge: a program that
relies on it has a race, even if the race does not occur. Callers hold the process's lock.

All host threads count as one: a wait by one thread counts for all. Synchronisation between threads
is not visible here, so a race between two host threads may be missed, but ordered accesses are
never reported as a race.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

Range: TypeAlias = tuple[int, int]
"""Address and bytes."""

HOST: Final = 0
"""The stream number of a `Use` by the host, which is finished as soon as it is checked."""

OWNER: Final = -1
"""The stream number of a `Use` that frees the memory, after which no use is valid."""

Knowledge: TypeAlias = Mapping[int, int]
"""Stream -> number of its last task that is known to be finished."""


class Ordering:
    """The knowledge of all streams and of the host."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # of existing streams
        self._streams: dict[int, dict[int, int]] = {}
        self._host: dict[int, int] = {}
        self._held: set[int] = set()

    def add(self, stream: int) -> None:
        """Add a stream; `stream` is a number never used before."""
        self._last[stream] = 0
        self._host[stream] = 0
        self._streams[stream] = {}

    def drop(self, stream: int) -> None:
        """Remove a stream whose tasks are all known to be finished."""
        del self._last[stream], self._host[stream], self._streams[stream]
        for known in self._streams.values():
            known.pop(stream, None)

    def submit(self, stream: int) -> int:
        """Add a task to `stream`; return its number."""
        number = self._last[stream] + 1
        self._last[stream] = number
        return number

    def last(self, stream: int) -> int:
        """Return the number of the last task of `stream`, 0 if none."""
        return self._last[stream]

    def upto(self, stream: int) -> Knowledge:
        """Return the knowledge gained by a wait for all tasks submitted to `stream` so far."""
        return {**self._streams[stream], stream: self._last[stream]}

    def learn(self, stream: int, knowledge: Knowledge) -> None:
        """Order later tasks of `stream` after all of `knowledge`."""
        self._merge(self._streams[stream], knowledge)

    def observe(self, knowledge: Knowledge) -> None:
        """Add `knowledge` to the host's: all later submissions come after it."""
        self._merge(self._host, knowledge)

    def suspend(self, stream: int) -> None:
        """Block the stream by a callback of the host: its later tasks start after `resume`."""
        self._held.add(stream)

    def resume(self, stream: int) -> None:
        """Undo `suspend`."""
        self._held.discard(stream)

    def is_over(self, stream: int, number: int) -> bool:
        """Return whether the host knows that task `number` of `stream` is finished."""
        return self._host.get(stream, number) >= number

    def comes_after(self, stream: int, other: int, number: int) -> bool:
        """Return whether a new use comes after task `number` of stream `other`.

        `stream` is the stream of the new use, or HOST or OWNER.
        """
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

    def describe(self) -> str:
        """Describe the use for messages: "writes bytes 0 to 64"."""
        return f"{'writes' if self.write else 'reads'} bytes {self.first:,} to {self.end:,}"


class Uses:
    """The uses of a block of memory by streams.

    Only the last of equal uses is kept: a later use that comes after it comes after all earlier
    ones. The size is therefore bounded by the distinct ranges in use, and `conflict` removes uses
    that the host knows to be finished.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[Use, int] = {}

    def add(self, use: Use, number: int) -> None:
        """Add a use by task `number` of the stream."""
        self._last[use] = number

    def conflict(self, ordering: Ordering, use: Use) -> Use | None:
        """Return another use of the same bytes that is not ordered before `use`, if any.

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


class PendingExecutions:
    """The submitted executions that use a model, a dataset or a buffer.

    An execution counts until the host has waited for it, even if it is finished (see `ordering`).
    Callers hold the process's lock.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, stream: int, number: int) -> None:
        """Add task `number` of the stream."""
        self._last[stream] = number

    def pending(self, ordering: Ordering) -> bool:
        """Return whether an execution is not known to be finished."""
        return bool(self._left(ordering))

    def unordered(self, ordering: Ordering, stream: int) -> bool:
        """Return whether an execution on another stream is unordered with `stream`'s next task."""
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
