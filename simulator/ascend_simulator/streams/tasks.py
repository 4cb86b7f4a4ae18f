"""The entries of a stream (tasks and marks), and the runners that execute streams."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, NamedTuple, Protocol, TypeAlias

from ascend_simulator.memory.blocks import Knowledge, Range


class Task(NamedTuple):
    """A unit of work of a stream.

    `run` is called once, on the stream's thread or, with a seed, on a waiting host thread. If the
    device fails, `run` raises Refused. If `run` raises another exception, the host's next wait
    raises that exception again.
    `reads` and `writes` are the ranges that `run` accesses, without gaps.
    """

    run: Callable[[], None]
    reads: Sequence[Range]
    writes: Sequence[Range]
    label: str
    kind: str = ""
    """The kind of task in a time line: "execute" or a copy kind; "" for no entry."""


class Span(NamedTuple):
    """A finished task of a stream. Times are perf_counter_ns."""

    stream: str
    kind: str
    label: str
    begin_ns: int
    end_ns: int


class Mark:
    """A position in a stream for which the host and other streams can wait."""

    __slots__ = ("_gate", "done", "knowledge", "stamp_ns")

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge: Final = knowledge
        """The tasks that are finished when this mark is passed."""
        self.done = False
        self.stamp_ns = 0
        """The time at which the mark was passed, perf_counter_ns."""
        self._gate = Lock()
        self._gate.acquire()

    def pass_(self) -> None:
        """Set the mark as passed. Called once."""
        self.stamp_ns = time.perf_counter_ns()
        self.done = True
        self._gate.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Block until the mark is passed; False after `timeout_s` (None: no limit)."""
        if self.done:
            return True
        if not self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return False
        self._gate.release()  # wakes the next waiter
        return True


class Steps(Protocol):
    """The interface of a stream that a runner without threads uses."""

    def is_ready(self) -> bool:
        """Return whether `step` can run an entry."""

    def step(self) -> None:
        """Run one entry. Call only if `is_ready` is true."""


class Runner(Protocol):
    """The way streams run while the host waits for a mark."""

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Block until `mark` is passed; False after `timeout_s`."""

    def poll(self) -> bool:
        """Run one entry, unless streams have threads; return whether an entry ran."""


Outside: TypeAlias = Callable[[], "Mark | None"]
"""Returns a mark that something other than a stream will pass (a callback), or None."""

_LOOK_S: Final = 0.2
"""Seconds between a waiting thread's checks of `Outside`."""


class ThreadRunner:
    """A runner for streams with their own threads."""

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

    def poll(self) -> bool:
        """Do nothing: the threads run by themselves."""
        return False


class SeededRunner:
    """Runs the tasks on the waiting host thread. A seed determines which stream runs next."""

    def __init__(self, seed: int, streams: Callable[[], Sequence[Steps]], outside: Outside) -> None:
        self._random = random.Random(seed)
        self._streams = streams
        self._outside = outside
        self._lock = Lock()

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Run streams until `mark` is passed. Ignores the timeout and never returns False."""
        while not mark.done:
            with self._lock:
                if mark.done or self._step():
                    continue
            awaited = self._outside()
            if awaited is not None:
                awaited.wait(_LOOK_S)
            elif not (mark.done or any(stream.is_ready() for stream in self._streams())):
                raise AssertionError("deadlock: the streams wait for each other")
        return True

    def poll(self) -> bool:
        """Run one step, so that a polling host makes progress."""
        with self._lock:
            return self._step()

    def _step(self) -> bool:
        ready = [stream for stream in self._streams() if stream.is_ready()]
        if ready:
            self._random.choice(ready).step()
        return bool(ready)
