"""The entries of a stream, which are tasks and marks, and the runners by which streams progress."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, NamedTuple, Protocol, TypeAlias

from ascend_simulator.memory.ordering import Knowledge, Range


class Task(NamedTuple):
    """Something for a stream to do.

    run is called once, on the stream's thread or, under a seed, on that of a waiting host. It
    raises Refused where the device would report a failure; anything else it raises reaches the
    host at its next wait. reads and writes are the ranges that run touches, holes excluded.
    """

    run: Callable[[], None]
    reads: Sequence[Range]
    writes: Sequence[Range]
    label: str
    kind: str = ""
    """What a time line tells it as: "execute", or the name of a copy's kind."""


class Span(NamedTuple):
    """A task of a stream that is over. Times are perf_counter_ns."""

    stream: str
    kind: str
    label: str
    begin_ns: int
    end_ns: int


class Mark:
    """A place in a stream that the host and other streams can wait for."""

    __slots__ = ("_gate", "done", "knowledge", "stamp_ns")

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge: Final = knowledge
        """What is over when this is done."""
        self.done = False
        self.stamp_ns = 0
        """When the stream passed it, perf_counter_ns."""
        self._gate = Lock()
        self._gate.acquire()

    def pass_(self) -> None:
        """The stream has come here. Called once."""
        self.stamp_ns = time.perf_counter_ns()
        self.done = True
        self._gate.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Block until the stream has come here; False after `timeout_s` (None: no limit)."""
        if self.done:
            return True
        if not self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return False
        self._gate.release()  # for the next who waits
        return True


class Steps(Protocol):
    """A stream, for whoever runs it without its thread."""

    def is_ready(self) -> bool:
        """Whether `step` can do something."""

    def step(self) -> None:
        """Do one thing; `is_ready` was true."""


class Runner(Protocol):
    """How streams come to run while the host waits for a mark."""

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Block until `mark` is passed; False after `timeout_s`."""

    def look(self) -> bool:
        """The host looks whether something is done, without waiting; whether that did something."""


Outside: TypeAlias = Callable[[], "Mark | None"]
"""Looks whether what streams wait for outside of them will come: a mark of it, None if nothing."""

_LOOK_S: Final = 0.2
"""How often whoever waits looks whether it will come."""


class ThreadRunner:
    """Streams run on their own threads."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Block until `mark` is passed; False after `timeout_s`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LOOK_S if end is None else min(_LOOK_S, end - time.monotonic())
            if mark.wait(max(left, 0)):
                return True
            if left < _LOOK_S:
                return False
            self._outside()

    def look(self) -> bool:
        """Nothing to do: the threads run anyway."""
        return False


class SeededRunner:
    """Streams run only while the host waits, on its thread, in an order that a number decides."""

    def __init__(self, seed: int, streams: Callable[[], Sequence[Steps]], outside: Outside) -> None:
        self._random = random.Random(seed)
        self._streams = streams
        self._outside = outside
        self._lock = Lock()

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Run streams until `mark` is passed. Time does not count: never False."""
        while not mark.done:
            with self._lock:
                if mark.done or self._step():
                    continue
            awaited = self._outside()
            if awaited is not None:
                awaited.wait(_LOOK_S)
            elif not (mark.done or any(stream.is_ready() for stream in self._streams())):
                raise AssertionError("found streams that wait for each other, expected none")
        return True

    def look(self) -> bool:
        """One step, so that a host that only looks gets on."""
        with self._lock:
            return self._step()

    def _step(self) -> bool:
        ready = [stream for stream in self._streams() if stream.is_ready()]
        if ready:
            self._random.choice(ready).step()
        return bool(ready)
