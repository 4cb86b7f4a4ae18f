"""The streams of a process, and the waits of the host."""

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
    """All streams of the process, and their shared state."""

    def __init__(
        self,
        memory: AddressSpace,
        lock: RLock,
        seed: int | None = None,
        queue: int = 0,
        timeline: int = 0,
    ) -> None:
        """Make an empty table.

        `queue` is the maximum of pending tasks of a stream; 0 is no limit. `timeline` is the number
        of finished tasks to keep.
        """
        self.lock = lock
        self.seed: Final = seed
        self.queue: Final = queue
        self.timeline: Final[deque[Span]] = deque(maxlen=timeline)
        self.on_task: Callable[[Span], object] | None = None
        """Called with each finished task, from any thread; None if not recorded."""
        self.ordering: Final = Ordering()
        self.claims: Final = Claims(memory, self.ordering, lock)
        self.lost = False
        """True if queued tasks are no longer run."""
        self._unseen: BaseException | None = None
        self._streams: dict[int, Stream] = {}
        self._numbers = count(1)
        self.outside: Outside = lambda: None
        """Returns a mark outside of the streams for which they wait, see `Outside`."""
        self._runner: Runner = (
            ThreadRunner(lambda: self.outside())
            if seed is None
            else SeededRunner(seed, self.alive, lambda: self.outside())
        )

    def create(self, group: Group, name: str) -> Stream:
        """Create a stream without tasks; its thread starts with the first task."""
        with self.lock:
            stream = Stream(self, group, next(self._numbers), name)
            self.ordering.add(stream.number)
            self.claims.names[stream.number] = name
            self._streams[stream.number] = stream
        return stream

    def forget(self, stream: Stream, raised: BaseException | None) -> None:
        """Forget a closed stream; keep the exception of its tasks that was not raised yet."""
        del self._streams[stream.number], self.claims.names[stream.number]
        self._unseen = self._unseen or raised

    def rethrow(self) -> None:
        """Raise an exception, other than Refused, that a closed stream did not raise, once."""
        raised, self._unseen = self._unseen, None
        if raised is not None:
            raise raised

    def drain(self) -> None:
        """Wait until all submitted tasks are done, without adding to the host's knowledge."""
        for stream in self.alive():
            if not stream.is_finished:
                self._runner.wait(stream.record(), None)

    def alive(self) -> Sequence[Stream]:
        """Return the streams, oldest first."""
        return list(self._streams.values())

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Wait for `mark` and add its knowledge to the host's; False after `timeout_s`."""
        if not self._runner.wait(mark, timeout_s):
            return False
        with self.lock:
            self.ordering.observe(mark.knowledge)
        return True

    def poll(self) -> bool:
        """Run one step if streams have no threads; return whether one ran. Never blocks."""
        return self._runner.poll()

    def is_finished(self, stream: Stream) -> bool:
        """Return whether the stream is finished; if so the host knows it. Never blocks."""
        self._runner.poll()
        if stream.is_finished:
            stream.wait()
            return True
        return False

    def is_done(self, mark: Mark) -> bool:
        """Return whether `mark` is passed; if so add its knowledge to the host's. Never blocks."""
        self._runner.poll()
        return mark.done and self.wait(mark, None)
