"""A device in another process, as a place for engines: the device service's client.

The place keeps a connection to the service, and a thread that watches it. When the service is
lost, whoever executes is told so at once, and the thread has everything back: it starts the next
service, announces the arenas, which this process still holds, and opens the engines again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Iterator, Sequence
from threading import Lock, Thread
from typing import Any, Final

from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Engine
from ge_runtime.errors import EngineLost, OutOfMemory, RuntimeFault
from ge_runtime.service.arenas import Shared, SharedMemory
from ge_runtime.service.channel import PeerGone
from ge_runtime.service.engine import ServiceEngine
from ge_runtime.service.limits import Limits
from ge_runtime.service.link import Link
from ge_runtime.service.protocol import VERSION, Json
from ge_runtime.service.pulse import NoService
from ge_runtime.specs import Array

_log = logging.getLogger(__name__)


class ServicePlace:
    """See `places.Place`: a device that the device service owns.

    Engines raise EngineLost while there is no service; what opens and prepares them, too.
    """

    def __init__(
        self,
        device: str,
        client: str,
        *,
        weight: float = 1.0,
        priority: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """client: for people. weight, priority: see `fair.Ticket`.

        Raises ServiceFault if the service cannot be had, and what it says of its device.
        """
        self.name: Final = device
        self._limits = limits or Limits()
        self._hello = {
            "role": "client",
            "version": VERSION,
            "name": client,
            "weight": weight,
            "priority": priority,
        }
        self._talking = Lock()  # one conversation at a time
        self._changing = Lock()  # guards the link, and is never held for long
        self._engines: list[ServiceEngine] = []
        self._closed = False
        self._why = ""
        self._shared = SharedMemory(device, self)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self.link: Link | None = self._reach()
        except BaseException:
            os.close(self._wake)
            raise
        self.kind: Final = self.link.kind
        self.hardware: Final = self.link.hardware
        self._pid, self._log = self.link.pid, self.link.log
        self._keeper = Thread(target=self._keep, name=f"service of {device}", daemon=True)
        self._keeper.start()

    @property
    def memory(self) -> SharedMemory:
        """See Place."""
        return self._shared

    @property
    def pid(self) -> int:
        """The service's process: the last one that there was."""
        return self._pid

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """See Place."""
        engine = ServiceEngine(self, artifacts, threads, outputs)
        with self._talking:
            link = self._link_now()
            with self._telling_losses(link):
                engine.open(link)
            self._engines.append(engine)
        return engine

    def adopt(self, memory: Array) -> None:
        """See Place. What the service cannot see is copied."""

    def disown(self, memory: Array) -> None:
        """See Place."""

    def freeze(self) -> None:
        """See Place."""
        self.memory.freeze()

    def close(self) -> None:
        """See Place."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
        os.eventfd_write(self._wake, 1)
        self._keeper.join()
        with self._talking:
            link, self.link = self.link, None
            for engine in self._engines:
                engine.lose()
            self._engines.clear()
            if link is not None:
                link.close()
        self.memory.free_all()
        os.close(self._wake)

    # ------------------------------------------------------------------------------ for engines

    def ask(self, message: Json) -> dict[str, Any]:
        """The service's answer. Raises EngineLost, and what the answer raises."""
        with self._talking:
            link = self._link_now()
            with self._telling_losses(link):
                return link.ask(message)

    def cancel(self, engine: int) -> None:
        """Have an execution not begin, if it has not. Never raises, and never waits for long."""
        if self._talking.acquire(blocking=False):
            try:
                if self.link is not None:
                    with contextlib.suppress(PeerGone, RuntimeFault):
                        self.link.ask({"do": "cancel", "engine": engine})
            finally:
                self._talking.release()

    def close_engine(self, engine: ServiceEngine, number: int) -> None:
        """Have the service free an engine. Nothing happens if it has."""
        with self._talking:
            if engine not in self._engines:
                return
            self._engines.remove(engine)
            engine.lose()
            if self.link is not None:
                with contextlib.suppress(PeerGone, RuntimeFault):
                    self.link.ask({"do": "close", "engine": number})

    def note_loss(self, link: Link, why: str) -> None:
        """The service is gone, or is not to be trusted any more. From any thread."""
        with self._changing:
            if self.link is not link or self._closed:
                return
            self.link = None
            self._why = why
        link.channel.shut()
        os.eventfd_write(self._wake, 1)

    def fault(self) -> EngineLost:
        """What to raise while there is no service."""
        state = "it was closed" if self._closed else "it is being restarted"
        return EngineLost(
            f"the device service of {self.name} (pid {self._pid}) is lost: {self._why}; {state}; "
            f"its log is {self._log}"
        )

    # ------------------------------------------------------------------------------- for memory

    def arena(self, shared: Shared) -> None:
        """See `arenas.Announce`."""
        with self._talking:
            link = self.link
            if link is None:
                return  # the next service is told of all there are
            try:
                with self._telling_losses(link):
                    link.announce(shared)
            except OutOfMemory as fault:
                raise MemoryError(str(fault)) from fault
            except EngineLost:
                return

    def forget(self, number: int) -> None:
        """See `arenas.Announce`."""
        with self._talking:
            if self.link is not None:
                with contextlib.suppress(PeerGone, RuntimeFault):
                    self.link.forget(number)

    # ------------------------------------------------------------------------------- the keeper

    def _link_now(self) -> Link:
        link = self.link
        if link is None:
            raise self.fault()
        return link

    def _reach(self) -> Link:
        return Link(self.name, self._limits, self._hello, self._wanted)

    def _wanted(self) -> None:
        if self._closed:
            raise PeerGone("its client was closed")

    @contextlib.contextmanager
    def _telling_losses(self, link: Link) -> Iterator[None]:
        try:
            yield
        except (PeerGone, NoService) as gone:
            self.note_loss(link, str(gone))
            raise self.fault() from gone

    def _keep(self) -> None:
        """Watch the service, and have it back when it is lost; until the place is closed."""
        delay_s, since = self._limits.retry_s, time.monotonic()
        while not self._closed:
            link = self.link
            if link is not None:
                self._watch(link)
                if self.link is None:
                    with self._talking:  # whoever talks finds it gone, and lets go of it
                        link.close()
                if time.monotonic() - since > self._limits.most_retry_s:  # it was sound
                    delay_s = self._limits.retry_s
                continue
            _log.warning("%s", self.fault())
            while not self._closed and self.link is None:
                self._pause(delay_s)
                delay_s = min(2 * delay_s, self._limits.most_retry_s)
                self._have_it_back()
            since = time.monotonic()

    def _watch(self, link: Link) -> None:
        """Return when the service is lost, or the place closed."""
        poll = select.poll()
        poll.register(link.channel, select.POLLRDHUP)
        poll.register(self._wake, select.POLLIN)
        while self.link is link and not self._closed:
            ready = dict(poll.poll(self._limits.probe_s * 1e3))
            if link.channel.fileno() in ready:
                self.note_loss(link, "it ended unexpectedly")
            try:
                link.pulse.check()
            except PeerGone as gone:
                self.note_loss(link, str(gone))
        self._drain()

    def _pause(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll(seconds * 1e3)
        self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _have_it_back(self) -> None:
        """One attempt. Raises nothing."""
        with self._talking:
            for engine in self._engines:
                engine.lose()
            link: Link | None = None
            try:
                link = self._reach()
                for shared in self.memory.shared:
                    link.announce(shared)
                for engine in self._engines:
                    engine.open(link)
                with self._changing:
                    self.link, self._pid, self._log = link, link.pid, link.log
                _log.info("%s: the device service is back, as pid %d", self.name, link.pid)
            except Exception as error:  # whatever it is, the next attempt may succeed
                for engine in self._engines:
                    engine.lose()
                if link is not None:
                    link.close()
                if not self._closed:
                    self._why = f"{type(error).__name__} when it was to be had back: {error}"
                    _log.warning("%s", self.fault())
