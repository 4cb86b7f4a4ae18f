"""Whose turn it is on a device that several processes share: facts and `now` in, decisions out.

No thread, no lock and no clock live here. The rule is start-time fair queuing (Goyal, Vin and
Cheng, 1996): each client has a virtual time that advances by what its executions took, divided by
their weight, and the waiting client of least virtual time is next. A client that comes, or comes
back, starts at the time of those being served: it gets no credit for having been away. What an
execution takes is known at its end; until then the expectation counts, then the truth.

Higher priorities go first, with a bound: a ticket that was overtaken `overtakings` times by later
ones of higher priority is due, and due tickets go before all others, the oldest first.

Executions take units of the device. Only the best ticket is served: if its units are not free the
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
"""Clients without tickets that are remembered before those are looked for who can be forgotten."""


class State(Enum):
    """Where a ticket stands. All but WAITING and RUNNING are final."""

    NEW = auto()
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()
    EXPIRED = auto()
    CANCELLED = auto()


@dataclass(slots=True, eq=False)
class Ticket:
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
    """Of the tickets with the same key, one at a time runs. None: any number."""
    expected_s: float = 0.0
    """What it will probably take."""
    what: str = ""
    """Whose execution of what it is, for people."""
    state: State = State.NEW
    asked_at: float = 0.0
    began_at: float = 0.0
    """Once it runs or has run."""
    overtaken: int = 0
    """Tickets of higher priority that came later and began before it."""

    @property
    def waited_s(self) -> float:
        """From asking to its start; exactly 0 if it was let in at once."""
        return self.began_at - self.asked_at


@dataclass(slots=True)
class _Account:
    """What is known of a client that waits, runs, or ran lately."""

    virtual_s: float
    tickets: int = 0
    """Waiting and running."""


class FairQueue:
    """Decides over `capacity` units. Not thread-safe.

    Methods that may end somebody's waiting return the tickets whose waiting they ended.
    """

    def __init__(self, capacity: int, overtakings: int = 16) -> None:
        self.capacity = capacity
        self.free = capacity
        self._overtakings = overtakings
        self._accounts: dict[Hashable, _Account] = {}
        self._waiting: list[Ticket] = []  # in order of arrival
        self._running: dict[Ticket, None] = {}  # in order of their starts
        self._exclusive: set[Hashable] = set()
        self._virtual_s = 0.0  # of those being served

    @property
    def waiting(self) -> Sequence[Ticket]:
        """In order of arrival."""
        return self._waiting

    @property
    def running(self) -> Sequence[Ticket]:
        """The one that has run longest first."""
        return tuple(self._running)

    def offer(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Take a new ticket: it is RUNNING, WAITING or EXPIRED afterwards.

        It is not among what is returned if it did not have to wait.
        """
        ticket.units = min(ticket.units, self.capacity)
        ticket.asked_at = now
        if ticket.deadline <= now:
            ticket.state = State.EXPIRED
            return ()
        account = self._accounts.get(ticket.client)
        if account is None:
            account = self._accounts[ticket.client] = _Account(self._virtual_s)
        elif not account.tickets:
            account.virtual_s = max(account.virtual_s, self._virtual_s)
        account.tickets += 1
        if not self._waiting and self._is_free(ticket) and ticket.units <= self.free:
            self._begin(ticket, now)
            return ()
        ticket.state = State.WAITING
        self._waiting.append(ticket)
        return [begun for begun in self._serve(now) if begun is not ticket]

    def finish(self, ticket: Ticket, took_s: float, now: float) -> Sequence[Ticket]:
        """A ticket has run, for so many seconds."""
        del self._running[ticket]
        ticket.state = State.FINISHED
        self.free += ticket.units
        self._exclusive.discard(ticket.exclusive)
        account = self._accounts[ticket.client]
        account.virtual_s += _share(ticket, took_s - ticket.expected_s)
        self._end(ticket)
        return self._serve(now)

    def cancel(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Whoever wanted it has left. A ticket that does not wait is left as it is."""
        if ticket.state is not State.WAITING:
            return ()
        self._drop(ticket, State.CANCELLED)
        return [ticket, *self._serve(now)]

    def cancel_all(self) -> Sequence[Ticket]:
        """Cancel all that wait."""
        tickets = tuple(self._waiting)
        for ticket in tickets:
            self._drop(ticket, State.CANCELLED)
        return tickets

    def expire(self, now: float) -> Sequence[Ticket]:
        """End the waiting of those whose deadlines have come. Call it at each of them."""
        late = [ticket for ticket in self._waiting if ticket.deadline <= now]
        for ticket in late:
            self._drop(ticket, State.EXPIRED)
        return [*late, *self._serve(now)] if late else ()

    def _serve(self, now: float) -> list[Ticket]:
        """Let the best in until it does not fit."""
        begun: list[Ticket] = []
        while self._waiting and self.free:
            able = [ticket for ticket in self._waiting if self._is_free(ticket)]
            best = min(able, key=self._rank, default=None)
            if best is None or best.units > self.free:
                break
            index = self._waiting.index(best)
            for passed in self._waiting[:index]:
                passed.overtaken += passed.priority < best.priority
            del self._waiting[index]
            self._begin(best, now)
            begun.append(best)
        return begun

    def _rank(self, ticket: Ticket) -> tuple[bool, float, float, float]:
        # Among equals `min` takes the first, which came first.
        if ticket.overtaken >= self._overtakings:
            return False, 0.0, 0.0, ticket.asked_at
        return True, -ticket.priority, self._accounts[ticket.client].virtual_s, 0.0

    def _is_free(self, ticket: Ticket) -> bool:
        return ticket.exclusive is None or ticket.exclusive not in self._exclusive

    def _begin(self, ticket: Ticket, now: float) -> None:
        ticket.state = State.RUNNING
        ticket.began_at = now
        self._running[ticket] = None
        self.free -= ticket.units
        if ticket.exclusive is not None:
            self._exclusive.add(ticket.exclusive)
        account = self._accounts[ticket.client]
        self._virtual_s = max(self._virtual_s, account.virtual_s)
        account.virtual_s += _share(ticket, ticket.expected_s)

    def _drop(self, ticket: Ticket, state: State) -> None:
        self._waiting.remove(ticket)
        ticket.state = state
        self._end(ticket)

    def _end(self, ticket: Ticket) -> None:
        """One ticket less; now and then, forget clients that would start anew where they stand."""
        self._accounts[ticket.client].tickets -= 1
        if len(self._accounts) > len(self._running) + len(self._waiting) + _MOST_IDLE:
            self._accounts = {
                client: account
                for client, account in self._accounts.items()
                if account.tickets or account.virtual_s > self._virtual_s
            }


def _share(ticket: Ticket, seconds: float) -> float:
    return ticket.units * seconds / ticket.weight
