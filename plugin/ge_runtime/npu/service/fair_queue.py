"""The fair queue: whose execution is next on a device that several processes share.

Facts and `now` in, decisions out: no thread, no lock and no clock live here. The rule is start-time
fair queuing (Goyal, Vin and Cheng, 1996): each client has a virtual time that advances by what its
executions took, divided by their weight, and the waiting client of least virtual time is next. A
client that comes, or comes back, starts at the time of those being served: it gets no credit for
having been away. What an execution takes is known at its end; until then the expectation counts,
then the truth.

Higher priorities go first, with a bound: an entry that later ones of higher priority have bypassed
`bypass_limit` times is due, and due entries go before all others, the oldest first.

Executions take units of the device. Only the best entry is served: if its units are not free the
device drains until they are, so none that needs much is passed by small ones for ever. When nothing
runs, nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_MOST_IDLE: Final = 64
"""Clients without entries that are remembered before those are looked for who can be forgotten."""


class State(Enum):
    """Where an entry stands. All but WAITING and RUNNING are final."""

    NEW = auto()
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()
    EXPIRED = auto()
    CANCELLED = auto()


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One execution that somebody wants. Only the queue writes what follows `what`."""

    client: Hashable
    units: int = 1
    """Of the device, while it runs."""
    weight: float = 1.0
    """Above 0: twice the weight, twice the share under contention."""
    priority: int = 0
    deadline: float = math.inf
    """Of its start, not of its end."""
    exclusive: Hashable | None = None
    """Of the entries with the same key, one at a time runs. None: any number."""
    expected_s: float = 0.0
    """Seconds that it will probably take."""
    what: str = ""
    """Whose execution of what it is, for people."""
    state: State = State.NEW
    asked_at: float = 0.0
    began_at: float = 0.0
    """Once it runs or has run."""
    bypassed: int = 0
    """Entries of higher priority that came later and began before it."""

    @property
    def waited_s(self) -> float:
        """From asking to its start; exactly 0 if it was let in at once."""
        return self.began_at - self.asked_at


@dataclass(slots=True)
class _Account:
    """What is known of a client that waits, runs, or ran lately."""

    virtual_s: float
    entries: int = 0
    """Waiting and running."""


class FairQueue:
    """Decides over `capacity` units. Not thread-safe.

    Methods that may end somebody's waiting return the entries whose waiting they ended.
    """

    def __init__(self, capacity: int, bypass_limit: int = 16) -> None:
        self.capacity = capacity
        self.free = capacity
        self._bypass_limit = bypass_limit
        self._accounts: dict[Hashable, _Account] = {}
        self._waiting: list[QueueEntry] = []  # in order of arrival
        self._running: dict[QueueEntry, None] = {}  # in order of their starts
        self._exclusive: set[Hashable] = set()
        self._virtual_s = 0.0  # of those being served

    @property
    def waiting(self) -> Sequence[QueueEntry]:
        """In order of arrival."""
        return self._waiting

    @property
    def running(self) -> Sequence[QueueEntry]:
        """The one that has run longest first."""
        return tuple(self._running)

    def offer(self, entry: QueueEntry, now: float) -> Sequence[QueueEntry]:
        """Take a new entry: it is RUNNING, WAITING or EXPIRED afterwards.

        It is not among what is returned if it did not have to wait.
        """
        entry.units = min(entry.units, self.capacity)
        entry.asked_at = now
        if entry.deadline <= now:
            entry.state = State.EXPIRED
            return ()
        account = self._accounts.get(entry.client)
        if account is None:
            account = self._accounts[entry.client] = _Account(self._virtual_s)
        elif not account.entries:  # it comes back: no credit for having been away
            account.virtual_s = max(account.virtual_s, self._virtual_s)
        account.entries += 1
        if not self._waiting and self._is_free(entry) and entry.units <= self.free:
            self._begin(entry, now)
            return ()
        entry.state = State.WAITING
        self._waiting.append(entry)
        return [begun for begun in self._serve(now) if begun is not entry]

    def finish(self, entry: QueueEntry, took_s: float, now: float) -> Sequence[QueueEntry]:
        """An entry has run, for so many seconds."""
        del self._running[entry]
        entry.state = State.FINISHED
        self.free += entry.units
        self._exclusive.discard(entry.exclusive)
        account = self._accounts[entry.client]
        # `_begin` has counted the expectation: what is left is its error.
        account.virtual_s += _share(entry, took_s - entry.expected_s)
        self._end(entry)
        return self._serve(now)

    def cancel(self, entry: QueueEntry, now: float) -> Sequence[QueueEntry]:
        """End its waiting, as its client has left. An entry that does not wait stays as it is."""
        if entry.state is not State.WAITING:
            return ()
        self._drop(entry, State.CANCELLED)
        return [entry, *self._serve(now)]

    def cancel_all(self) -> Sequence[QueueEntry]:
        """Cancel all that wait."""
        entries = tuple(self._waiting)
        for entry in entries:
            self._drop(entry, State.CANCELLED)
        return entries

    def expire(self, now: float) -> Sequence[QueueEntry]:
        """End the waiting of those whose deadlines have come. Call it at each of them."""
        late = [entry for entry in self._waiting if entry.deadline <= now]
        for entry in late:
            self._drop(entry, State.EXPIRED)
        return [*late, *self._serve(now)] if late else ()

    def _serve(self, now: float) -> list[QueueEntry]:
        """Let the best in until it does not fit."""
        begun: list[QueueEntry] = []
        while self._waiting and self.free:
            able = [entry for entry in self._waiting if self._is_free(entry)]
            best = min(able, key=self._rank, default=None)
            if best is None or best.units > self.free:
                break
            index = self._waiting.index(best)
            for passed in self._waiting[:index]:
                passed.bypassed += passed.priority < best.priority
            del self._waiting[index]
            self._begin(best, now)
            begun.append(best)
        return begun

    def _rank(self, entry: QueueEntry) -> tuple[bool, float, float, float]:
        # Among equals `min` takes the first, which came first.
        if entry.bypassed >= self._bypass_limit:
            return False, 0.0, 0.0, entry.asked_at
        return True, -entry.priority, self._accounts[entry.client].virtual_s, 0.0

    def _is_free(self, entry: QueueEntry) -> bool:
        return entry.exclusive is None or entry.exclusive not in self._exclusive

    def _begin(self, entry: QueueEntry, now: float) -> None:
        entry.state = State.RUNNING
        entry.began_at = now
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
        """One entry less; now and then, forget clients that would start anew where they stand."""
        self._accounts[entry.client].entries -= 1
        if len(self._accounts) > len(self._running) + len(self._waiting) + _MOST_IDLE:
            self._accounts = {
                client: account
                for client, account in self._accounts.items()
                if account.entries or account.virtual_s > self._virtual_s
            }


def _share(entry: QueueEntry, seconds: float) -> float:
    return entry.units * seconds / entry.weight
