"""Keeps a client connected to its device's service: watches it, and has the next one after it.

When the service is lost, whoever talks to it is told so at once, and a thread has it back: it
starts the next service, to which its owner gives all that the last one had.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from threading import Lock, Thread
from typing import Final, Protocol, TypeVar

from ge_runtime.errors import EngineLost, ServiceFault
from ge_runtime.service.alarm import Alarm
from ge_runtime.service.channel import PeerGone
from ge_runtime.service.forks import Connected, not_inherited
from ge_runtime.service.limits import Limits
from ge_runtime.service.link import Link
from ge_runtime.service.protocol import Json
from ge_runtime.service.pulse import NoService

_log = logging.getLogger(__name__)

_WORD_S: Final = 5.0
"""Until the service has answered a word on which nothing depends: then it is left."""

Value = TypeVar("Value")


class Owner(Connected, Protocol):
    """Whose service it is."""

    def settle(self, link: Link) -> None:
        """Give a new service all that the last one had. Raises what goes wrong."""

    def unsettle(self) -> None:
        """The service is gone: let go of all that was had of it."""


class _Unwanted(PeerGone):
    """Nobody wants any more what somebody waits for."""


class Keeper:
    """The link to the service, while there is one. Safe from any thread."""

    def __init__(self, device: str, hello: Json, limits: Limits, owner: Owner) -> None:
        """Reaches the service. Raises ServiceFault, and what the service says of its device."""
        self._device = device
        self._hello = hello
        self._limits = limits
        self._owner = owner
        self._talking = Lock()  # one conversation at a time
        self._changing = Lock()  # guards the next five, and is never held for long
        self._closed = False
        self._why = ""
        self._leaving = 0  # those who want to talk for the last time
        self._lost: list[Link] = []  # until nobody talks there any more
        self._watched: Link | None = None
        self.link: Link | None = None
        """None while there is no service."""
        link = self._reach()
        self.pid, self._log = link.pid, link.log
        self.kind: Final = link.kind
        self.hardware: Final = link.hardware
        try:
            self._alarm = Alarm()
        except OSError as error:
            link.close()
            raise ServiceFault(
                f"the device service of {device} cannot be watched: {error}"
            ) from error
        self.link = link
        self._thread = Thread(target=self._keep, name=f"service of {device}", daemon=True)
        not_inherited(self)
        self._thread.start()

    def close(self) -> None:
        """Leave the service. Safe to call twice; waits for nothing that may take long."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            self._why = self._why or "its client has left"
        self._alarm.ring()
        self._thread.join()
        with self._talking:
            link, self.link = self.link, None
            self._owner.unsettle()
            self._let_go()
            if link is not None:
                link.close()
        self._alarm.close()

    def fault(self) -> EngineLost:
        """What to raise while there is no service."""
        state = "it was closed" if self._closed else "it is being restarted"
        return EngineLost(
            f"the device service of {self._device} (pid {self.pid}) is lost: {self._why}; {state}; "
            f"its log is {self._log}"
        )

    def note_loss(self, link: Link, why: str) -> None:
        """The service is gone, or is not to be trusted any more."""
        with self._changing:
            if self.link is not link or self._closed:
                return
            self.link = None
            self._lost.append(link)
            self._why = why
            link.channel.shut()
            self._alarm.ring()

    # ---------------------------------------------------------------------------- conversations

    def talk(self, say: Callable[[Link], Value]) -> Value:
        """What comes of talking to the service.

        If it is lost meanwhile, the same is said once more to the next one. Raises EngineLost if
        that is not to be had, or is lost as well.
        """
        with self._talking:
            try:
                return self._once(say)
            except EngineLost:
                self._have_it_back()
                return self._once(say)

    def talk_once(self, say: Callable[[Link], None]) -> None:
        """The same with this service alone. Raises EngineLost."""
        with self._talking:
            self._once(say)

    @contextlib.contextmanager
    def last_words(self) -> Iterator[Callable[[Json], None]]:
        """For the length of a `with`, how to tell the service what it can let go of.

        While there is no service nobody is told, and the next one is not waited for.
        """
        with self._changing:
            self._leaving += 1
        try:
            with self._talking:
                yield self._tell
        finally:
            with self._changing:
                self._leaving -= 1

    def try_to_tell(self, message: Json) -> None:
        """Tell the service something, unless somebody else talks to it just now."""
        if self._talking.acquire(blocking=False):
            try:
                self._tell(message)
            finally:
                self._talking.release()

    def _once(self, say: Callable[[Link], Value]) -> Value:
        link = self.link
        if link is None:
            raise self.fault()
        try:
            return say(link)
        except (PeerGone, NoService, EngineLost) as gone:
            self.note_loss(link, str(gone) or "it has gone")
            raise self.fault() from gone

    def _tell(self, message: Json) -> None:
        link = self.link
        if link is not None:
            try:
                link.tell(message, _WORD_S)
            except PeerGone as gone:
                self.note_loss(link, str(gone))

    # ------------------------------------------------------------------------------- the thread

    def _keep(self) -> None:
        """Watch the service, and have it back when it is lost; until the end."""
        delay_s, since = self._limits.retry_s, time.monotonic()
        while not self._closed:
            with self._changing:
                link = self._watched = self.link
            if link is not None:
                self._watch(link)
                self._watched = None
                with self._talking:  # whoever talks there finds it gone, and ends
                    self._let_go()
                if time.monotonic() - since > self._limits.most_retry_s:  # it was sound
                    delay_s = self._limits.retry_s
                continue
            _log.warning("%s: %s", self._hello["name"], self.fault())
            while not self._closed and self.link is None:
                self._alarm.wait(delay_s)
                delay_s = min(2 * delay_s, self._limits.most_retry_s)
                with self._talking:
                    self._have_it_back()
            since = time.monotonic()

    def _watch(self, link: Link) -> None:
        """Return when the service is lost, or at the end."""
        while self.link is link and not self._closed:
            if self._alarm.wait(self._limits.probe_s, link.channel):
                self.note_loss(link, "it ended unexpectedly")
            try:
                link.pulse.check()
            except PeerGone as gone:
                self.note_loss(link, str(gone))
        self._alarm.silence()  # for the loss, which is known now

    def _reach(self) -> Link:
        return Link(self._device, self._limits, self._hello, self._wanted)

    def _wanted(self) -> None:
        if self._closed:
            raise _Unwanted("its client was closed")
        if self._leaving and self.link is None:
            raise _Unwanted("its client lets go of something")

    def _have_it_back(self) -> None:
        """One attempt, unless it is there. Raises nothing. Belongs to who talks."""
        if self.link is not None or self._closed:
            return
        self._owner.unsettle()
        self._let_go()
        link: Link | None = None
        try:
            link = self._reach()
            self._owner.settle(link)
            with self._changing:
                self.link, self.pid, self._log = link, link.pid, link.log
            self._alarm.ring()  # it is to be watched
            _log.info(
                "%s: the device service of %s is back, as pid %d",
                self._hello["name"],
                self._device,
                link.pid,
            )
        except Exception as error:  # whatever it is, the next attempt may succeed
            self._owner.unsettle()
            if link is not None:
                link.close()
            if not isinstance(error, _Unwanted):
                self._why = f"{type(error).__name__} when it was to be had back: {error}"
                _log.warning("%s: %s", self._hello["name"], self.fault())

    def _let_go(self) -> None:
        """Close what is lost, but what is watched. Belongs to who talks."""
        with self._changing:
            lost = [link for link in self._lost if link is not self._watched]
            self._lost = [link for link in self._lost if link is self._watched]
        for link in lost:
            link.close()

    # --------------------------------------------------------------------------------- its forks

    def abandon(self) -> None:
        self._talking, self._changing = Lock(), Lock()
        if self._closed:
            return
        self._closed = True
        self._why = "it is the client's that this process was forked from"
        links = [*self._lost, *([] if self.link is None else [self.link])]
        self.link, self._lost = None, []
        self._owner.abandon()
        for link in links:
            link.close()
        self._alarm.close()
