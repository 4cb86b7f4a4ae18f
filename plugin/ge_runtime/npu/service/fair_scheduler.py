"""The scheduler of executions of several processes on one device: a fair queue, and its threads.

`FairQueue` decides which execution is next. It is pure: it receives the time as an argument, and
has no threads, locks or clock. `FairScheduler` adds the threads and locks.

The rule is start-time fair queuing (Goyal, Vin and Cheng, 1996). Each client has a virtual time
that advances by the duration of its executions divided by its weight, and the waiting client with
the smallest virtual time is next. A client that arrives or returns starts at the virtual time of
the clients being served, so it gets no credit for its absence. Until an execution has ended, its
expected duration counts.

Higher priorities are served first, but not without bound: an entry that was bypassed `bypass_limit`
times by later entries of higher priority is due. Due entries are served before all other entries,
the oldest first.

Executions use units of the device. Only the best entry is served: if it needs more units than are
free, no entry starts until enough are, so that small entries cannot bypass a large one for ever.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from threading import Condition, Lock
from typing import Final

from ge_runtime.clock import Clock
from ge_runtime.errors import Cancelled, EngineLost, Expired

_MOST_IDLE: Final = 64
"""Number of accounts of idle clients above which accounts that are not needed are removed."""


class State(Enum):
    """The state of an entry. FINISHED, EXPIRED and CANCELLED are final."""

    NEW = auto()
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()
    EXPIRED = auto()
    CANCELLED = auto()


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One execution in the queue. The queue sets `state` and the attributes below `state`."""

    client: Hashable
    units: int = 1
    """Units of the device that the execution uses."""
    weight: float = 1.0
    """Share of a busy device relative to the shares of other clients; above 0."""
    priority: int = 0
    deadline: float = math.inf
    """Time by which the execution must start."""
    exclusive: Hashable | None = None
    """Entries with the same key run one at a time. None: no such limit."""
    expected_s: float = 0.0
    """Expected duration in seconds."""
    what: str = ""
    """Description of client and model, for people."""
    state: State = State.NEW
    enqueued_at: float = 0.0
    started_at: float = 0.0
    """Valid when the execution has started."""
    bypassed: int = 0
    """Number of later entries of higher priority that started before this entry."""

    @property
    def waited_s(self) -> float:
        """Seconds in the queue; exactly 0 if the execution started at once."""
        return self.started_at - self.enqueued_at


@dataclass(slots=True)
class _Account:
    """The account of a client that has entries, or had entries recently."""

    virtual_s: float
    entries: int = 0
    """Number of waiting and running entries."""


class FairQueue:
    """A queue of executions for `capacity` units. Not thread-safe.

    Methods that may end the wait of entries return the entries whose wait has ended.
    """

    def __init__(self, capacity: int, bypass_limit: int = 16) -> None:
        self.capacity = capacity
        self.free = capacity
        self._bypass_limit = bypass_limit
        self._accounts: dict[Hashable, _Account] = {}
        self._waiting: list[QueueEntry] = []  # in order of arrival
        self._running: dict[QueueEntry, None] = {}  # in order of their start
        self._exclusive: set[Hashable] = set()
        self._virtual_s = 0.0  # virtual time of the clients being served

    @property
    def waiting(self) -> Sequence[QueueEntry]:
        """The waiting entries in order of arrival."""
        return self._waiting

    @property
    def running(self) -> Sequence[QueueEntry]:
        """The running entries in order of their start."""
        return tuple(self._running)

    def offer(self, entry: QueueEntry, now: float) -> Sequence[QueueEntry]:
        """Add a new entry, which is RUNNING, WAITING or EXPIRED afterwards.

        The result does not contain the new entry, even if it started.
        """
        entry.units = min(entry.units, self.capacity)
        entry.enqueued_at = now
        if entry.deadline <= now:
            entry.state = State.EXPIRED
            return ()
        account = self._accounts.get(entry.client)
        if account is None:
            account = self._accounts[entry.client] = _Account(self._virtual_s)
        elif not account.entries:  # a client that returns gets no credit for its absence
            account.virtual_s = max(account.virtual_s, self._virtual_s)
        account.entries += 1
        if not self._waiting and self._is_free(entry) and entry.units <= self.free:
            self._begin(entry, now)
            return ()
        entry.state = State.WAITING
        self._waiting.append(entry)
        return [started for started in self._serve(now) if started is not entry]

    def finish(self, entry: QueueEntry, took_s: float, now: float) -> Sequence[QueueEntry]:
        """Remove a running entry that took `took_s` seconds."""
        del self._running[entry]
        entry.state = State.FINISHED
        self.free += entry.units
        self._exclusive.discard(entry.exclusive)
        account = self._accounts[entry.client]
        # `_begin` has added the expected duration; correct the difference.
        account.virtual_s += _share(entry, took_s - entry.expected_s)
        self._end(entry)
        return self._serve(now)

    def cancel(self, entry: QueueEntry, now: float) -> Sequence[QueueEntry]:
        """Remove a waiting entry; no-op in other states."""
        if entry.state is not State.WAITING:
            return ()
        self._drop(entry, State.CANCELLED)
        return [entry, *self._serve(now)]

    def cancel_all(self) -> Sequence[QueueEntry]:
        """Cancel all waiting entries."""
        entries = tuple(self._waiting)
        for entry in entries:
            self._drop(entry, State.CANCELLED)
        return entries

    def expire(self, now: float) -> Sequence[QueueEntry]:
        """Remove the entries whose deadlines have passed. Must be called at each deadline."""
        late = [entry for entry in self._waiting if entry.deadline <= now]
        for entry in late:
            self._drop(entry, State.EXPIRED)
        return [*late, *self._serve(now)] if late else ()

    def _serve(self, now: float) -> list[QueueEntry]:
        """Start the best entries until the next one does not fit."""
        started: list[QueueEntry] = []
        while self._waiting and self.free:
            ready = [entry for entry in self._waiting if self._is_free(entry)]
            best = min(ready, key=self._rank, default=None)
            if best is None or best.units > self.free:
                break
            index = self._waiting.index(best)
            for passed in self._waiting[:index]:
                passed.bypassed += passed.priority < best.priority
            del self._waiting[index]
            self._begin(best, now)
            started.append(best)
        return started

    def _rank(self, entry: QueueEntry) -> tuple[bool, float, float, float]:
        # If entries are equal, `min` returns the entry that arrived first.
        if entry.bypassed >= self._bypass_limit:
            return False, 0.0, 0.0, entry.enqueued_at
        return True, -entry.priority, self._accounts[entry.client].virtual_s, 0.0

    def _is_free(self, entry: QueueEntry) -> bool:
        return entry.exclusive is None or entry.exclusive not in self._exclusive

    def _begin(self, entry: QueueEntry, now: float) -> None:
        entry.state = State.RUNNING
        entry.started_at = now
        self._running[entry] = None
        self.free -= entry.units
        if entry.exclusive is not None:
            self._exclusive.add(entry.exclusive)
        account = self._accounts[entry.client]
        self._virtual_s = max(self._virtual_s, account.virtual_s)
        account.virtual_s += _share(entry, entry.expected_s)

    def _drop(self, entry: QueueEntry, state: State) -> None:
        self._waiting.remove(entry)
        entry.state = state
        self._end(entry)

    def _end(self, entry: QueueEntry) -> None:
        """Remove an entry from its account. If there are many accounts, remove unused ones."""
        self._accounts[entry.client].entries -= 1
        if len(self._accounts) > len(self._running) + len(self._waiting) + _MOST_IDLE:
            self._accounts = {
                client: account
                for client, account in self._accounts.items()
                if account.entries or account.virtual_s > self._virtual_s
            }


def _share(entry: QueueEntry, seconds: float) -> float:
    return entry.units * seconds / entry.weight


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counters since the start of the service, and current values."""

    capacity: int
    free: int
    running: int
    waiting: int
    begun: int
    """Number of started executions."""
    waited: int
    """Number of started executions that had to wait."""
    wait_s: float
    """Total waiting time of started executions."""
    longest_wait_s: float
    expired: int
    cancelled: int


class FairScheduler:
    """Schedules the executions of all clients on one device. Thread-safe."""

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
        """Block until the entry may run; afterwards the caller must call `leave`.

        Raises:
            Expired: The deadline has passed. `leave` must not be called.
            Cancelled: `cancel` was called. `leave` must not be called.
            EngineLost: `close` was called. `leave` must not be called.
        """
        with self._lock:
            if not self._closed:
                self._wake(self._queue.offer(entry, self._clock.now()))
            if entry.state is State.WAITING:
                self._wait(entry)
            if entry.state is State.RUNNING:
                self._begun += 1
                return
            # Checked first: `close` cancels the waiting entries, but must not raise Cancelled.
            if self._closed:
                raise EngineLost("the device service ends")
            late = entry.state is State.EXPIRED
            self._expired += late
            self._cancelled += not late
        if late:
            raise Expired("the deadline has passed while waiting for the device")
        raise Cancelled("cancelled while waiting for the device")

    def leave(self, entry: QueueEntry, took_s: float) -> None:
        """End the execution of an entry, which took `took_s` seconds."""
        with self._lock:
            self._wake(self._queue.finish(entry, took_s, self._clock.now()))
            if self._closed and not self._queue.running:
                self._idle.notify_all()

    def cancel(self, entry: QueueEntry) -> None:
        """Cancel an entry; no-op if it is not waiting."""
        with self._lock:
            self._wake(self._queue.cancel(entry, self._clock.now()))

    def close(self, patience_s: float) -> None:
        """Start no more executions. Blocks until none is running, at most `patience_s` seconds."""
        with self._lock:
            now = self._clock.now()
            self._closed = True
            self._wake(self._queue.cancel_all())
            while self._queue.running and self._clock.now() < now + patience_s:
                self._clock.wait(self._idle, now + patience_s)

    def overdue(self, run_s: float) -> str | None:
        """Return the description of an execution that runs longer than `run_s`, or None."""
        with self._lock:
            running = self._queue.running
            if running and self._clock.now() - running[0].started_at > run_s:
                return running[0].what
            return None

    def stats(self) -> SchedulerStats:
        """Return a consistent snapshot."""
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
        # One condition for each entry, so that only threads whose waiting has ended wake up.
        condition = self._conditions[entry] = Condition(self._lock)
        try:
            while entry.state is State.WAITING:
                self._clock.wait(condition, entry.deadline)
                # The thread that wakes up first expires all late entries.
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
