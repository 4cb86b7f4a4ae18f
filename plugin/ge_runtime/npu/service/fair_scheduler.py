"""The fair scheduler: the threads and locks around `fair_queue.FairQueue`, which decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Condition, Lock

from ge_runtime.clock import Clock
from ge_runtime.errors import Cancelled, EngineLost, Expired
from ge_runtime.npu.service.fair_queue import FairQueue, QueueEntry, State


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Since the start, and now."""

    capacity: int
    free: int
    running: int
    waiting: int
    begun: int
    waited: int
    """Of those begun, how many had to wait."""
    wait_s: float
    """Of all that waited and began."""
    longest_wait_s: float
    expired: int
    cancelled: int


class FairScheduler:
    """Executions of all clients on one device. Safe from any thread."""

    def __init__(self, capacity: int, clock: Clock) -> None:
        self._queue = FairQueue(capacity)
        self._clock = clock
        self._lock = Lock()
        self._conditions: dict[QueueEntry, Condition] = {}
        self._idle = Condition(self._lock)
        self._closed = False
        self._begun = self._waited = self._expired = self._cancelled = 0
        self._wait_s = self._longest_wait_s = 0.0

    def enter(self, entry: QueueEntry) -> None:
        """Block until it is the entry's turn; `leave` must follow.

        Raises Expired, Cancelled once `cancel` was called, or EngineLost once `close` was; then
        `leave` must not follow.
        """
        with self._lock:
            if not self._closed:
                self._wake(self._queue.offer(entry, self._clock.now()))
            if entry.state is State.WAITING:
                self._wait(entry)
            if entry.state is State.RUNNING:
                self._begun += 1
                return
            # First: `close` cancels all that wait, but nobody of them wanted that.
            if self._closed:
                raise EngineLost("the device service ends")
            late = entry.state is State.EXPIRED
            self._expired += late
            self._cancelled += not late
        if late:
            raise Expired("found the deadline passed while waiting for the device, expected a turn")
        raise Cancelled("cancelled while waiting for the device")

    def leave(self, entry: QueueEntry, took_s: float) -> None:
        """The execution has ended, after so many seconds."""
        with self._lock:
            self._wake(self._queue.finish(entry, took_s, self._clock.now()))
            if self._closed and not self._queue.running:
                self._idle.notify_all()

    def cancel(self, entry: QueueEntry) -> None:
        """End the entry's waiting. Nothing happens if it does not wait."""
        with self._lock:
            self._wake(self._queue.cancel(entry, self._clock.now()))

    def close(self, patience_s: float) -> None:
        """Let nobody in any more. Blocks until nothing runs, or for so long."""
        with self._lock:
            now = self._clock.now()
            self._closed = True
            self._wake(self._queue.cancel_all())
            while self._queue.running and self._clock.now() < now + patience_s:
                self._clock.wait(self._idle, now + patience_s)

    def overdue(self, run_s: float) -> str | None:
        """Whose execution of what has been running for more than that; None if none has."""
        with self._lock:
            running = self._queue.running
            if running and self._clock.now() - running[0].began_at > run_s:
                return running[0].what
            return None

    def stats(self) -> SchedulerStats:
        """All at one moment."""
        with self._lock:
            return SchedulerStats(
                capacity=self._queue.capacity,
                free=self._queue.free,
                running=len(self._queue.running),
                waiting=len(self._queue.waiting),
                begun=self._begun,
                waited=self._waited,
                wait_s=self._wait_s,
                longest_wait_s=self._longest_wait_s,
                expired=self._expired,
                cancelled=self._cancelled,
            )

    def _wait(self, entry: QueueEntry) -> None:
        # A condition for each: whoever's turn it is wakes up alone, not all that wait.
        condition = self._conditions[entry] = Condition(self._lock)
        try:
            while entry.state is State.WAITING:
                self._clock.wait(condition, entry.deadline)
                # Whoever wakes up asks for all: the queue ends the waiting of each that is late.
                if entry.deadline < math.inf:
                    self._wake(self._queue.expire(self._clock.now()))
        finally:
            del self._conditions[entry]
        if entry.state is State.RUNNING:
            self._waited += 1
            self._wait_s += entry.waited_s
            self._longest_wait_s = max(self._longest_wait_s, entry.waited_s)

    def _wake(self, ended: Sequence[QueueEntry]) -> None:
        for entry in ended:
            self._conditions[entry].notify()
