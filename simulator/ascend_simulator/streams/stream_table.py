"""The streams of a process, and the host's waiting for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from threading import RLock
from typing import Final

from ascend_simulator.memory.heaps import AddressSpace
from ascend_simulator.memory.ordering import Ordering
from ascend_simulator.streams.claims import Claims
from ascend_simulator.streams.stream import Group, Stream
from ascend_simulator.streams.tasks import (
    Mark,
    Outside,
    Runner,
    SeededRunner,
    Span,
    ThreadRunner,
)


class Streams:
    """All streams of the process, and what they know of each other."""

    def __init__(
        self,
        memory: AddressSpace,
        lock: RLock,
        seed: int | None = None,
        queue: int = 0,
        timeline: int = 0,
    ) -> None:
        """queue: tasks that a stream takes before one of them is done; 0 is no limit.

        timeline: how many tasks that ran are remembered.
        """
        self.lock = lock
        self.seed: Final = seed
        self.queue: Final = queue
        self.timeline: Final[deque[Span]] = deque(maxlen=timeline)
        self.noted: Callable[[Span], object] | None = None
        """What is told of each task that ran, from any thread; None: nobody asks."""
        self.ordering: Final = Ordering()
        self.claims: Final = Claims(memory, self.ordering, lock)
        self.lost = False
        """Once true, nothing queued is done any more."""
        self._unseen: BaseException | None = None
        self._streams: dict[int, Stream] = {}
        self._numbers = count(1)
        self.outside: Outside = lambda: None
        """What streams wait for outside of them."""
        self._runner: Runner = (
            ThreadRunner(lambda: self.outside())
            if seed is None
            else SeededRunner(seed, self.alive, lambda: self.outside())
        )

    def create(self, group: Group, name: str) -> Stream:
        """A stream without tasks; its thread starts with the first."""
        with self.lock:
            stream = Stream(self, group, next(self._numbers), name)
            self.ordering.add(stream.number)
            self.claims.names[stream.number] = name
            self._streams[stream.number] = stream
        return stream

    def forget(self, stream: Stream, raised: BaseException | None) -> None:
        """A stream is closed, and nobody saw what its tasks raised."""
        del self._streams[stream.number], self.claims.names[stream.number]
        self._unseen = self._unseen or raised

    def rethrow(self) -> None:
        """Raise what a task of a closed stream raised beside Refused and nobody saw, once."""
        raised, self._unseen = self._unseen, None
        if raised is not None:
            raise raised

    def drain(self) -> None:
        """Wait until all that was submitted is done; the host knows no more of it than before."""
        for stream in self.alive():
            if not stream.is_through:
                self._runner.wait(stream.record(), None)

    def alive(self) -> Sequence[Stream]:
        """The streams, oldest first."""
        return list(self._streams.values())

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """The host waits for `mark` and then knows what it knows; False after `timeout_s`."""
        if not self._runner.wait(mark, timeout_s):
            return False
        with self.lock:
            self.ordering.observe(mark.knowledge)
        return True

    def look(self) -> bool:
        """Whether something was done because the host looks. Never blocks."""
        return self._runner.look()

    def is_through(self, stream: Stream) -> bool:
        """Whether nothing is left to do on it; if so the host then knows. Never blocks."""
        self._runner.look()
        if stream.is_through:
            stream.wait()
            return True
        return False

    def is_done(self, mark: Mark) -> bool:
        """Whether `mark` is passed; if so the host then knows what it knows. Never blocks."""
        self._runner.look()
        return mark.done and self.wait(mark, None)
