"""A client that stays connected to its device's service, and reconnects when the service is lost.

After a loss, calls raise EngineLost at once. A thread starts the next service, and restores there
the resources that the client had in the lost service.
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

_NOTIFY_S: Final = 5.0
"""Time limit for the response to a notification, whose result is not needed."""

Value = TypeVar("Value")


class Restorable(ForkAware, Protocol):
    """A resource in the service that is created again in the next service."""

    def restore(self, connection: Connection) -> None:
        """Create the resource in a new service. Raises an exception if that fails."""

    def disconnect(self) -> None:
        """Release the resource's connections after the service was lost. Safe to call twice."""


class _Abandoned(PeerGone):
    """The wait for a service was abandoned, because the connection is not needed any more."""


class ReconnectingClient:
    """The connection to a device service. Thread-safe.

    The client is in one of three states:

    - connected: `connection` is set.
    - reconnecting: `connection` is unset (None), and the thread tries to reach the next service.
    - closed: `close` was called (`_closed`).

    Two locks protect it. A thread that needs both acquires `_conversation_lock` first.

    - `_conversation_lock` is held for each call on the control connection and while reconnecting,
      which may take long. It guards `_restorables`.
    - `_state_lock` guards changes of the other attributes until the client is closed, and is held
      only briefly. These attributes are read without a lock.
    """

    def __init__(
        self, device: str, hello: Json, timeouts: Timeouts, restorables: Sequence[Restorable]
    ) -> None:
        """Connect to the service, which is started if necessary.

        Args:
            device: Name of the device.
            hello: The first message on each connection.
            timeouts: Time limits.
            restorables: Resources to restore before the resources of `add`.

        Raises:
            ServiceFault: The service cannot be reached.
            RuntimeFault: The fault that the service reports.
        """
        self._device = device
        self._hello = hello
        self._timeouts = timeouts
        self._conversation_lock = Lock()
        self._restorables = list(restorables)  # in the order in which they are restored
        self._state_lock = Lock()
        self._closed = False
        self._loss_reason = ""
        self._cleanups = 0  # threads in `cleanup`, which do not wait for the next service
        self._lost_connections: list[Connection] = []  # shut down, but not closed yet
        self._watched: Connection | None = None  # the connection that the thread polls
        self.connection: Connection | None = None
        """The current connection; None while there is no service."""
        connection = self._connect()
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
        self._thread = Thread(
            target=self._watch_and_reconnect, name=f"service of {device}", daemon=True
        )
        close_in_forks(self)
        self._thread.start()

    def close(self) -> None:
        """Disconnect from the service. Does not block for long. Safe to call twice."""
        with self._state_lock:
            if self._closed:
                return
            self._closed = True
            self._loss_reason = self._loss_reason or "the client has closed the connection"
        self._wake.set()
        self._thread.join()
        with self._conversation_lock:
            connection, self.connection = self.connection, None
            self._disconnect_all()
            self._close_lost_connections()
            if connection is not None:
                connection.close()
        self._wake.close()

    @property
    def condition(self) -> Json:
        """The last known condition of the service's device, also while there is no service."""
        connection = self.connection
        if connection is not None:
            self._condition = connection.heartbeat.condition
        return self._condition

    def fault(self) -> EngineLost:
        """Return the error to raise while there is no service."""
        state = "it was closed" if self._closed else "it is being restarted"
        return EngineLost(
            f"the device service of {self._device} (pid {self.pid}) is lost: "
            f"{self._loss_reason}; {state}; its log is {self._log_path}"
        )

    def report_loss(self, connection: Connection, reason: str) -> None:
        """Start to reconnect, because the service is lost or violated the protocol."""
        with self._state_lock:
            if self.connection is not connection or self._closed:
                return
            self.connection = None
            self._lost_connections.append(connection)
            self._loss_reason = reason
            # Not closed yet: another thread may be receiving on the connection, and the number of
            # its descriptor could be reused for another file.
            connection.channel.shut_down()
            self._wake.set()

    # ---------------------------------------------------------------------------- conversations

    def call(self, function: Callable[[Connection], Value]) -> Value:
        """Call `function` with the connection, and return its result.

        If the service is lost during the call, `function` is called once more with the next
        service. Raises EngineLost if the next service cannot be reached, or is lost as well.
        """
        with self._conversation_lock:
            try:
                return self._call(function)
            except EngineLost:
                self._try_reconnect()  # the thread may be waiting between two attempts
                return self._call(function)

    def call_once(self, function: Callable[[Connection], None]) -> None:
        """Call `function` with the connection, without a second attempt. Raises EngineLost."""
        with self._conversation_lock:
            self._call(function)

    @contextlib.contextmanager
    def cleanup(self) -> Iterator[Callable[[Json], None]]:
        """Return a context that yields a function to notify the service of released resources.

        Notifications are dropped while there is no service. The context does not wait for the
        next service.
        """
        with self._state_lock:
            self._cleanups += 1  # first, because it makes a reconnecting thread release its lock
        try:
            with self._conversation_lock:
                yield self._notify
        finally:
            with self._state_lock:
                self._cleanups -= 1

    def try_notify(self, message: Json) -> None:
        """Send a notification, unless another thread uses the connection."""
        if self._conversation_lock.acquire(blocking=False):
            try:
                self._notify(message)
            finally:
                self._conversation_lock.release()

    def add(self, restorable: Restorable) -> None:
        """Restore the resource in the next service. Requires `_conversation_lock`."""
        self._restorables.append(restorable)

    def remove(self, restorable: Restorable) -> bool:
        """Undo `add`; return whether it was added. Requires `_conversation_lock`."""
        if restorable not in self._restorables:
            return False
        self._restorables.remove(restorable)
        return True

    def _call(self, function: Callable[[Connection], Value]) -> Value:
        """Call `function`; report a lost service. Requires `_conversation_lock`."""
        connection = self.connection
        if connection is None:
            raise self.fault()
        try:
            return function(connection)
        except (PeerGone, NoService, EngineLost) as gone:
            self.report_loss(connection, str(gone) or "it has ended")
            raise self.fault() from gone

    def _notify(self, message: Json) -> None:
        """Send a notification, if connected. Requires `_conversation_lock`."""
        connection = self.connection
        if connection is not None:
            try:
                connection.notify(message, _NOTIFY_S)
            except PeerGone as gone:
                self.report_loss(connection, str(gone))

    # ------------------------------------------------------------------------------- the thread

    def _watch_and_reconnect(self) -> None:
        """Run in the thread: watch the service, and reconnect after a loss, until `close`."""
        delay_s, since = self._timeouts.retry_s, time.monotonic()
        while not self._closed:
            with self._state_lock:
                connection = self._watched = self.connection
            if connection is not None:
                self._watch(connection)
                self._watched = None
                with self._conversation_lock:  # calls on the lost connection have ended
                    self._close_lost_connections()
                if time.monotonic() - since > self._timeouts.most_retry_s:  # a stable connection
                    delay_s = self._timeouts.retry_s
                continue
            _log.warning("%s: %s", self._hello["name"], self.fault())
            while not self._closed and self.connection is None:
                self._wake.wait(delay_s)
                delay_s = min(2 * delay_s, self._timeouts.most_retry_s)
                with self._conversation_lock:
                    self._try_reconnect()
            since = time.monotonic()

    def _watch(self, connection: Connection) -> None:
        """Return when the service is lost, or the client is closed."""
        while self.connection is connection and not self._closed:
            if self._wake.wait(self._timeouts.probe_s, connection.channel):
                self.report_loss(connection, "it ended unexpectedly")
            try:
                connection.heartbeat.check()
            except PeerGone as gone:
                self.report_loss(connection, str(gone))
        self._wake.clear()  # set by `report_loss`

    def _connect(self) -> Connection:
        return Connection(self._device, self._timeouts, self._hello, self._check_needed)

    def _check_needed(self) -> None:
        """Raise _Abandoned if waiting for a service must end."""
        if self._closed:
            raise _Abandoned("the client was closed")
        if self._cleanups and self.connection is None:
            raise _Abandoned("the client releases a resource")

    def _try_reconnect(self) -> None:
        """Try to reconnect once; no-op if connected or closed. Never raises.

        Requires `_conversation_lock`.
        """
        if self.connection is not None or self._closed:
            return
        self._disconnect_all()
        self._close_lost_connections()
        connection: Connection | None = None
        try:
            connection = self._connect()
            for restorable in self._restorables:
                restorable.restore(connection)
            # Last: executions must find their engines in the new service.
            with self._state_lock:
                self.connection = connection
                self.pid, self._log_path = connection.pid, connection.log
            self._wake.set()  # lets the thread watch the connection
            _log.info(
                "%s: reconnected to the device service of %s, pid %d",
                self._hello["name"],
                self._device,
                connection.pid,
            )
        except Exception as error:  # of any type: the next attempt may succeed
            self._disconnect_all()
            if connection is not None:
                connection.close()
            if not isinstance(error, _Abandoned):
                self._loss_reason = f"{type(error).__name__} while reconnecting: {error}"
                _log.warning("%s: %s", self._hello["name"], self.fault())

    def _disconnect_all(self) -> None:
        """Disconnect all resources. Requires `_conversation_lock`."""
        for restorable in self._restorables:
            restorable.disconnect()

    def _close_lost_connections(self) -> None:
        """Close lost connections, except a polled connection. Requires `_conversation_lock`."""
        with self._state_lock:
            unused = [one for one in self._lost_connections if one is not self._watched]
            self._lost_connections = [one for one in self._lost_connections if one is self._watched]
        for connection in unused:
            connection.close()

    # ----------------------------------------------------------------------------------- forks

    def close_in_fork(self) -> None:
        # New locks: threads that do not exist in the fork may have held the old ones.
        self._conversation_lock, self._state_lock = Lock(), Lock()
        if self._closed:
            return
        self._closed = True
        self._loss_reason = "the connection belongs to the process that forked this one"
        current = [] if self.connection is None else [self.connection]
        connections = [*self._lost_connections, *current]
        self.connection, self._lost_connections = None, []
        for restorable in self._restorables:
            restorable.close_in_fork()
        for connection in connections:
            connection.close()
        self._wake.close()


class WakeEvent:
    """An event that a thread can wait for together with the end of a connection."""

    def __init__(self) -> None:
        """Create the event. Raises OSError."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """End the current wait, or the next one. Thread-safe."""
        os.eventfd_write(self._wake, 1)

    def wait(self, seconds: float, channel: Channel | None = None) -> bool:
        """Wait for the event or the end of the channel, at most `seconds`.

        Returns:
            Whether the peer of the channel has ended.
        """
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if channel is not None:
            poll.register(channel, select.POLLRDHUP)
        ready = dict(poll.poll(seconds * 1e3))
        self.clear()
        return channel is not None and channel.fileno() in ready

    def clear(self) -> None:
        """Forget earlier calls of `set`."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._wake)
