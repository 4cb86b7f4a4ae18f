"""Who is connected, and what each holds: all of it comes back when they leave, however that is."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from ge_runtime.engines.backend import DeviceBackend
from ge_runtime.service.arenas import Arenas
from ge_runtime.service.fair import State, Ticket
from ge_runtime.service.library import Library, Volume
from ge_runtime.service.protocol import Broken

_log = logging.getLogger(__name__)

MOST_ENGINES: Final = 256
"""Of one client, which has one. More are a defect of the client, and are refused."""


@dataclass(slots=True, eq=False)
class Loan:
    """An engine as one client has it: its own turn, its own counts."""

    number: int
    name: str
    """The model's, as this client has it: files of equal content may have others."""
    volume: Volume
    busy: Lock = field(default_factory=Lock)
    """Held by the connection that executes on it."""
    hang_up: Callable[[], None] = lambda: None
    """Ends that connection, so that its thread finds it gone."""
    ticket: Ticket | None = None
    """Of its execution, waiting or under way."""


@dataclass(slots=True, eq=False)
class Tenant:
    """A client: one model instance, connected. Its connections' threads change it under `lock`."""

    token: str
    number: int
    """Its own among all clients of this service."""
    name: str
    pid: int
    weight: float
    priority: int
    arenas: Arenas
    lock: Lock = field(default_factory=Lock)
    loans: dict[int, Loan] = field(default_factory=dict)
    connections: int = 1
    leaving: bool = False
    version: int = 0
    """Grows when an arena goes: what was looked up in them before must be looked up again."""
    executions: int = 0
    faults: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0

    @property
    def process(self) -> Hashable:
        """Who shares with whom: all clients in a process are one."""
        return self.pid

    @property
    def waiting(self) -> int:
        """Its executions that wait for their turns."""
        with self.lock:
            tickets = [loan.ticket for loan in self.loans.values()]
        return sum(ticket is not None and ticket.state is State.WAITING for ticket in tickets)

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def note(self, took_s: float, waited_s: float, *, failed: bool) -> None:
        """One more execution has ended. Called by the connections of one engine each."""
        self.executions += 1
        self.faults += failed
        self.busy_s += took_s
        self.wait_s += waited_s

    def loan(self, number: object) -> Loan:
        """The engine of this number. Raises Broken if the client has none."""
        with self.lock:
            loan = self.loans.get(number) if isinstance(number, int) else None
        if loan is None:
            raise Broken(f"found engine {number!r}, expected one that this client has opened")
        return loan


class Tenants:
    """All clients. Safe from any thread."""

    def __init__(
        self,
        place: Callable[[], DeviceBackend],
        library: Callable[[], Library],
        changed: Callable[[], None],
    ) -> None:
        """place, library: opened with the first use. changed: called when one comes or has gone."""
        self._place = place
        self._library = library
        self._changed = changed
        self._lock = Lock()
        self._tenants: dict[str, Tenant] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._tenants)

    def enter(self, name: str, pid: int, weight: float, priority: int) -> Tenant:
        """A new client, with one connection."""
        arenas = Arenas(lambda m: self._place().register(m), lambda m: self._place().unregister(m))
        token, number = secrets.token_hex(16), next(self._numbers)
        tenant = Tenant(token, number, name, pid, weight, priority, arenas)
        with self._lock:
            self._tenants[token] = tenant
        self._changed()
        return tenant

    def join(self, token: object) -> Tenant:
        """The client with this token, for one connection more. Raises Broken if there is none."""
        with self._lock:
            tenant = self._tenants.get(token) if isinstance(token, str) else None
            if tenant is None or tenant.leaving:
                raise Broken("found the token of no client, expected that of one connected")
            tenant.connections += 1
            return tenant

    def leave(self, tenant: Tenant) -> None:
        """One connection less; with the last everything comes back that the client held."""
        with self._lock:
            tenant.connections -= 1
            if tenant.connections:
                return
        with tenant.lock:
            loans, tenant.loans = list(tenant.loans.values()), {}
        for loan in loans:
            with _told(f"{tenant}: {loan.name} was not given back"):
                self._library().give_back(loan.volume)
        for number in tenant.arenas.numbers:
            with _told(f"{tenant}: arena {number} was not given back"):
                tenant.arenas.remove(number)
        _log.info("%s has left", tenant)
        with self._lock:  # only now: whoever does not see it any more finds nothing of it either
            del self._tenants[tenant.token]
        self._changed()

    def all(self) -> list[Tenant]:
        """Those there are."""
        with self._lock:
            return list(self._tenants.values())

    def lend(self, tenant: Tenant, name: str, volume: Volume) -> Loan:
        """An engine for the client. name: the model's, for people."""
        loan = Loan(next(self._numbers), name, volume)
        with tenant.lock:
            tenant.loans[loan.number] = loan
        return loan


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Log what goes wrong, and go on: a device that keeps one thing keeps no others."""
    try:
        yield
    except Exception:
        _log.exception("%s", what)
