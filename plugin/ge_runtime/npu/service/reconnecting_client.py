"""Keeps a client connected to its device's service: watches it, and reconnects to the next one.

When the service is lost, whoever talks to it is told so at once. A thread starts the next service,
and gives it all that the client had in the last one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, Thread
from typing import Final, Protocol, TypeVar

from ge_runtime.errors import EngineLost, ServiceFault
from ge_runtime.npu.service.channel import Channel, ForkAware, PeerGone, close_in_forks
from ge_runtime.npu.service.connection import Connection, NoService
from ge_runtime.npu.service.protocol import Json, Timeouts

_log = logging.getLogger(__name__)

_WORD_S: Final = 5.0
"""Until the service has answered a word on which nothing depends: then it is left."""

Value = TypeVar("Value")


class Restorable(ForkAware, Protocol):
    """Something that a client has in the service, and that the next service is to have, too."""

    def restore(self, connection: Connection) -> None:
        """Give it to a new service. Raises what goes wrong."""

    def lose(self) -> None:
        """The service is gone: let go of all that was had of it. Safe to call twice."""


class _Unwanted(PeerGone):
    """A wait whose result nobody wants any more."""


class ReconnectingClient:
    """The connection to the service, while there is one. Safe from any thread."""

    def __init__(
        self, device: str, hello: Json, timeouts: Timeouts, restorables: Sequence[Restorable]
    ) -> None:
        """Reaches the service. Raises ServiceFault, and what the service says of its device.

        restorables: what each next service is to have, before all that is added later.
        """
        self._device = device
        self._hello = hello
        self._timeouts = timeouts
        self._talking = Lock()  # one conversation at a time; guards the next
        self._restorables = list(restorables)  # in the order in which they are restored
        self._changing = Lock()  # guards the rest, and is never held for long
        self._closed = False
        self._why = ""
        self._leaving = 0  # those who want to talk for the last time
        self._lost: list[Connection] = []  # until nobody talks there any more
        self._watched: Connection | None = None
        self.connection: Connection | None = None
        """None while there is no service."""
        connection = self._reach()
        self.pid, self._log_path = connection.pid, connection.log
        self._condition = connection.heartbeat.condition
        self.kind: Final = connection.kind
        self.hardware: Final = connection.hardware
        try:
            self._wake = WakeEvent()
        except OSError as error:
            connection.close()
            raise ServiceFault(
                f"the device service of {device} cannot be watched: {error}"
            ) from error
        self.connection = connection
        self._thread = Thread(target=self._keep, name=f"service of {device}", daemon=True)
        close_in_forks(self)
        self._thread.start()

    def close(self) -> None:
        """Leave the service. Safe to call twice; waits for nothing that may take long."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            self._why = self._why or "its client has left"
        self._wake.set()
        self._thread.join()
        with self._talking:
            connection, self.connection = self.connection, None
            self._lose_all()
            self._close_lost()
            if connection is not None:
                connection.close()
        self._wake.close()

    @property
    def condition(self) -> Json:
        """What the service's device told of itself last, be there a service now or not."""
        connection = self.connection
        if connection is not None:
            self._condition = connection.heartbeat.condition
        return self._condition

    def fault(self) -> EngineLost:
        """What to raise while there is no service."""
        state = "it was closed" if self._closed else "it is being restarted"
        return EngineLost(
            f"the device service of {self._device} (pid {self.pid}) is lost: {self._why}; {state}; "
            f"its log is {self._log_path}"
        )

    def note_loss(self, connection: Connection, why: str) -> None:
        """The service is gone, or is not to be trusted any more."""
        with self._changing:
            if self.connection is not connection or self._closed:
                return
            self.connection = None
            self._lost.append(connection)
            self._why = why
            # Not closed: another thread may be receiving there, and its descriptor's number would
            # soon be another file's.
            connection.channel.shut_down()
            self._wake.set()

    # ---------------------------------------------------------------------------- conversations

    def talk(self, say: Callable[[Connection], Value]) -> Value:
        """What comes of talking to the service.

        If it is lost meanwhile, the same is said once more to the next one. Raises EngineLost if
        that is not to be had, or is lost as well.
        """
        with self._talking:
            try:
                return self._once(say)
            except EngineLost:
                self._reconnect()  # here and now: the thread may wait between two attempts
                return self._once(say)

    def talk_once(self, say: Callable[[Connection], None]) -> None:
        """The same with this service alone. Raises EngineLost."""
        with self._talking:
            self._once(say)

    @contextlib.contextmanager
    def last_words(self) -> Iterator[Callable[[Json], None]]:
        """For the length of a `with`, how to tell the service what it can let go of.

        While there is no service nobody is told, and the next one is not waited for.
        """
        with self._changing:
            self._leaving += 1  # before the lock: who has it gives up waiting for the next service
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

    def add(self, restorable: Restorable) -> None:
        """Have the next service have it, too. Belongs to who talks."""
        self._restorables.append(restorable)

    def remove(self, restorable: Restorable) -> bool:
        """Have the next service not have it; whether it was there. Belongs to who talks."""
        if restorable not in self._restorables:
            return False
        self._restorables.remove(restorable)
        return True

    def _once(self, say: Callable[[Connection], Value]) -> Value:
        connection = self.connection
        if connection is None:
            raise self.fault()
        try:
            return say(connection)
        except (PeerGone, NoService, EngineLost) as gone:
            self.note_loss(connection, str(gone) or "it has gone")
            raise self.fault() from gone

    def _tell(self, message: Json) -> None:
        connection = self.connection
        if connection is not None:
            try:
                connection.tell(message, _WORD_S)
            except PeerGone as gone:
                self.note_loss(connection, str(gone))

    # ------------------------------------------------------------------------------- the thread

    def _keep(self) -> None:
        """Watch the service, and reconnect when it is lost; until the end."""
        delay_s, since = self._timeouts.retry_s, time.monotonic()
        while not self._closed:
            with self._changing:
                connection = self._watched = self.connection
            if connection is not None:
                self._watch(connection)
                self._watched = None
                with self._talking:  # whoever talks there finds it gone, and ends
                    self._close_lost()
                if time.monotonic() - since > self._timeouts.most_retry_s:  # it was sound
                    delay_s = self._timeouts.retry_s
                continue
            _log.warning("%s: %s", self._hello["name"], self.fault())
            while not self._closed and self.connection is None:
                self._wake.wait(delay_s)
                delay_s = min(2 * delay_s, self._timeouts.most_retry_s)
                with self._talking:
                    self._reconnect()
            since = time.monotonic()

    def _watch(self, connection: Connection) -> None:
        """Return when the service is lost, or at the end."""
        while self.connection is connection and not self._closed:
            if self._wake.wait(self._timeouts.probe_s, connection.channel):
                self.note_loss(connection, "it ended unexpectedly")
            try:
                connection.heartbeat.check()
            except PeerGone as gone:
                self.note_loss(connection, str(gone))
        self._wake.clear()  # for the loss, which is known now

    def _reach(self) -> Connection:
        return Connection(self._device, self._timeouts, self._hello, self._wanted)

    def _wanted(self) -> None:
        if self._closed:
            raise _Unwanted("its client was closed")
        if self._leaving and self.connection is None:
            raise _Unwanted("its client lets go of something")

    def _reconnect(self) -> None:
        """One attempt, unless it is there. Raises nothing. Belongs to who talks."""
        if self.connection is not None or self._closed:
            return
        self._lose_all()
        self._close_lost()
        connection: Connection | None = None
        try:
            connection = self._reach()
            for restorable in self._restorables:
                restorable.restore(connection)
            # Only now: what executes must find its engine in the new service.
            with self._changing:
                self.connection = connection
                self.pid, self._log_path = connection.pid, connection.log
            self._wake.set()  # it is to be watched
            _log.info(
                "%s: the device service of %s is back, as pid %d",
                self._hello["name"],
                self._device,
                connection.pid,
            )
        except Exception as error:  # whatever it is, the next attempt may succeed
            self._lose_all()
            if connection is not None:
                connection.close()
            if not isinstance(error, _Unwanted):
                self._why = f"{type(error).__name__} when it was to be had back: {error}"
                _log.warning("%s: %s", self._hello["name"], self.fault())

    def _lose_all(self) -> None:
        for restorable in self._restorables:
            restorable.lose()

    def _close_lost(self) -> None:
        """Close what is lost, but what is watched. Belongs to who talks."""
        with self._changing:
            lost = [one for one in self._lost if one is not self._watched]
            self._lost = [one for one in self._lost if one is self._watched]
        for connection in lost:
            connection.close()

    # --------------------------------------------------------------------------------- its forks

    def close_in_fork(self) -> None:
        # New ones: threads that are not in the fork may have them, for ever.
        self._talking, self._changing = Lock(), Lock()
        if self._closed:
            return
        self._closed = True
        self._why = "it is the client's that this process was forked from"
        connections = [*self._lost, *([] if self.connection is None else [self.connection])]
        self.connection, self._lost = None, []
        for restorable in self._restorables:
            restorable.close_in_fork()
        for connection in connections:
            connection.close()
        self._wake.close()


class WakeEvent:
    """An event that a thread can wait for together with a connection's end."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """End the wait: this one, or the next. From any thread."""
        os.eventfd_write(self._wake, 1)

    def wait(self, seconds: float, channel: Channel | None = None) -> bool:
        """Wait until it is set, for so long at most; whether the channel's other side has gone."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if channel is not None:
            poll.register(channel, select.POLLRDHUP)
        ready = dict(poll.poll(seconds * 1e3))
        self.clear()
        return channel is not None and channel.fileno() in ready

    def clear(self) -> None:
        """Have the next wait not end for what was set until now."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._wake)
