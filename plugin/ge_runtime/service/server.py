"""The device service: owns a device for its clients, and ends when nobody needs it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ge_runtime.clock import Clock
from ge_runtime.engines.backend import DeviceBackend
from ge_runtime.service.channel import Channel
from ge_runtime.service.door import Door
from ge_runtime.service.fair import Ticket
from ge_runtime.service.grace import Grace
from ge_runtime.service.library import Library, Volume
from ge_runtime.service.limits import Limits
from ge_runtime.service.paths import RuntimeFolder, file_name
from ge_runtime.service.protocol import Json
from ge_runtime.service.session import serve
from ge_runtime.service.stats import describe
from ge_runtime.service.tenancy import Loan, Tenant, Tenants
from ge_runtime.service.turns import Turns
from ge_runtime.service.visible import meant_by

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""Between two looks at how long executions have been running."""
_END_S: Final = 5.0
"""What executions in progress get, to end, when the service does."""
_CARD_UNITS: Final = 2
"""Executions of a card under way at a time: one computes while the next is copied there."""


class Server:
    """The owner of one device. `run` belongs to one thread; all else is for any."""

    def __init__(
        self,
        device: str,
        folder: RuntimeFolder,
        *,
        clock: Clock,
        limits: Limits,
        open_place: Callable[[str], DeviceBackend],
        cores: int,
        now_and_then: Callable[[], None] = lambda: None,
    ) -> None:
        """Listens from now on. Raises OSError if it cannot.

        open_place: makes the device's place, with the first client. cores: those of the host that
        executions on it share. now_and_then: called every second or so.
        """
        self.device = device
        self.means = meant_by(device, os.environ)
        """The machine's own name of the device: clients must mean the same."""
        self.clock = clock
        self.limits = limits
        self.started_at = clock.now()
        self.turns = Turns(cores if device == "cpu" else _CARD_UNITS, clock)
        self.tenants = Tenants(self.place, self.library, self._count)
        self._folder = folder
        self._open_place = open_place
        self._now_and_then = now_and_then
        self._place: DeviceBackend | None = None
        self._library: Library | None = None
        self._opening = threading.Lock()
        self._grace = Grace(limits.grace_s, self.started_at)
        self._lock = threading.Lock()  # guards the grace
        self._ending: str | None = None
        self._patience_s = _END_S
        self._waking = threading.RLock()  # guards the next; a signal may come to who has it
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._door = Door(folder.address(device), partial(serve, self))

    # ------------------------------------------------------------------------ for connections

    def place(self) -> DeviceBackend:
        """The device's place, opened with the first call. Raises what opening it raises."""
        with self._opening:
            if self._place is None:
                self._place = self._open_place(self.device)
                self._library = Library(self._place)
            return self._place

    def library(self) -> Library:
        """The engines at the place."""
        self.place()
        assert self._library is not None, "it is opened with the place"
        return self._library

    def units(self, volume: Volume) -> int:
        """What an execution takes of the device."""
        return volume.threads if self.device == "cpu" else 1

    @contextlib.contextmanager
    def alone(self, tenant: Tenant, loan: Loan) -> Iterator[None]:
        """A turn in which nobody executes on an engine that is not made for several."""
        ticket = Ticket(
            tenant.process,
            1,
            tenant.weight,
            tenant.priority,
            exclusive=loan.volume.exclusive,
            what=f"{tenant} of {loan.name}",
        )
        self.turns.enter(ticket)
        started = self.clock.now()
        try:
            yield
        finally:
            self.turns.leave(ticket, self.clock.now() - started)

    def stats(self) -> Json:
        """All that an operator can look at."""
        volumes = [] if self._library is None else self._library.volumes()
        return describe(
            self.device,
            self.clock.now() - self.started_at,
            self._place,
            volumes,
            self.tenants.all(),
            self.turns,
        )

    def end(self, why: str, *, patience_s: float = _END_S) -> None:
        """End the service: `run` returns. From any thread, and from a signal's handler.

        patience_s: for executions under way; those that wait for their turn are told at once.
        """
        with self._waking:
            if self._ending is None:
                self._ending, self._patience_s = why, patience_s
                os.eventfd_write(self._wake, 1)

    # --------------------------------------------------------------------------------- its life

    def run(self) -> None:
        """Serve until nobody needs it, or until `end`; `close` must follow."""
        poll = select.poll()
        poll.register(self._door, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._ending is None:
            now = self.clock.now()
            with self._lock:
                left_s = self._grace.ends_at - now
            if left_s <= 0:
                if not self._door.let_in():  # nobody came at the last moment
                    self.end("nobody has needed it for a while")
                continue
            poll.poll(min(left_s, _LOOK_S) * 1e3)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            self._door.let_in()
            self._now_and_then()
            if (what := self.turns.overdue(self.limits.run_s)) is not None:
                why = f"an execution for {what} has been running for {self.limits.run_s:g} s"
                self.end(why, patience_s=0.0)

    def close(self) -> bool:
        """Have executions end, leave all clients, close the place; False if something hangs."""
        _log.info("it ends: %s", self._ending)
        with contextlib.suppress(OSError):
            os.unlink(f"{file_name(self.device)}.sock", dir_fd=self._folder.descriptor)
        self._door.close()
        self.turns.close(self._patience_s)
        leave = self._door.leave
        if not (leave(Channel.hush, self._patience_s) or leave(Channel.shut, _END_S)):
            return False
        if self._library is not None:
            self._library.close()
        if self._place is not None:
            self._place.close()
        with self._waking:
            os.close(self._wake)
        return True

    def _count(self) -> None:
        with self._lock:
            self._grace.note(len(self.tenants), self.clock.now())
        os.eventfd_write(self._wake, 1)
