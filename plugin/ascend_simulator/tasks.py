"""What a stream is given: tasks to do, and marks to pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, NamedTuple

from ascend_simulator.ordering import Knowledge, Range


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
