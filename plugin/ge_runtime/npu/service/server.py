"""The process of a device service, which owns a device and ends when it has no clients.

The launcher's process runs `main`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import logging
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ge_runtime.clock import Clock, SystemClock
from ge_runtime.engines.backend import DeviceBackend, open_backend
from ge_runtime.npu.service.channel import Channel, peer_of
from ge_runtime.npu.service.launcher import READY, LogFile, RuntimeFolder, file_name
from ge_runtime.npu.service.protocol import Kind, Timeouts, framed, pack_json
from ge_runtime.npu.service.session import serve
from ge_runtime.npu.service.state import ServiceState

_log = logging.getLogger(__name__)

_CHECK_S: Final = 1.0
"""Interval of checks for executions that hang."""
_END_S: Final = 5.0
"""Time for executions in progress when the service ends."""
_EXIT_S: Final = 30.0
"""Time from the end of the service to the forced end of the process."""
_FULL_S: Final = 1.0
"""Delay after a connection could not be accepted for lack of descriptors."""

_BACKLOG: Final = 128
_MOST_CONNECTIONS: Final = 1024
_MOST_OF_ONE: Final = _MOST_CONNECTIONS // 2
"""Maximum number of connections of one process, so that it cannot block all other processes."""
_DESCRIPTORS: Final = 65_536
"""Limit of descriptors, enough for connections and arenas of many clients."""


# ---------------------------------------------------------------------------------- the process


def main(device: str, path: str, timeouts: str, descriptor: int, lock: int, ready: int) -> None:
    """Run the service of a device until it has no clients, then exit.

    Args:
        device: Name of the device.
        path: The runtime folder.
        timeouts: Time limits, as JSON.
        descriptor: Inherited descriptor of the runtime folder.
        lock: Inherited descriptor of the device's lock, held until the process ends.
        ready: Inherited descriptor to which READY or an error is written.
    """
    folder = RuntimeFolder(Path(path), descriptor)
    for inherited in (descriptor, lock, ready):
        os.set_inheritable(inherited, False)  # a child process of a library would hold the lock
    faulthandler.enable()
    log = LogFile(device, folder)
    log.begin()
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"ge_runtime {device}")
    _reset_inherited_state(folder)
    try:
        server = Server(
            device,
            folder,
            clock=SystemClock(),
            timeouts=Timeouts(**json.loads(timeouts)),
            open_backend=open_backend,
            cores=len(os.sched_getaffinity(0)),
            periodically=log.rotate,
        )
    except Exception as error:
        logging.exception("the service cannot start")
        _report(ready, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: server.end(signal.Signals(number).name))
    logging.info("the device service of %s, pid %d", device, os.getpid())
    faulthandler.cancel_dump_traceback_later()  # set by the launcher
    _report(ready, READY)
    server.run()
    faulthandler.dump_traceback_later(_EXIT_S, exit=True)
    ended = server.close()
    logging.shutdown()
    if not ended:  # an execution hangs, and would keep the process alive
        os._exit(1)


def _reset_inherited_state(folder: RuntimeFolder) -> None:
    """Reset signals, umask and limits, which the process inherited from the client."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    # systemd does not clean up folders in /tmp that are locked (tmpfiles.d(5), "Age").
    with contextlib.suppress(OSError):
        fcntl.flock(folder.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _report(ready: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, text)
    os.close(ready)


# ----------------------------------------------------------------------------------- the server


class Server:
    """The server for the clients of one device. One thread calls `run` and `close`."""

    def __init__(
        self,
        device: str,
        folder: RuntimeFolder,
        *,
        clock: Clock,
        timeouts: Timeouts,
        open_backend: Callable[[str], DeviceBackend],
        cores: int,
        periodically: Callable[[], None] = lambda: None,
    ) -> None:
        """Start to listen.

        Args:
            device: Name of the device.
            folder: The runtime folder.
            clock: The clock.
            timeouts: Time limits.
            open_backend: See `ServiceState`.
            cores: See `ServiceState`.
            periodically: Called about every second.

        Raises:
            OSError: The server cannot listen.
        """
        self.state = ServiceState(
            device,
            clock=clock,
            cores=cores,
            open_backend=open_backend,
            end=self.end,
            sessions_changed=self._note_clients,
        )
        self._device = device
        self._clock = clock
        self._timeouts = timeouts
        self._folder = folder
        self._periodically = periodically
        self._idle = IdleTimeout(timeouts.grace_s, clock.now())
        self._idle_lock = threading.Lock()
        self._ending: str | None = None
        self._patience_s = _END_S
        # Guards `_wake` and `_ending`; reentrant, because a signal handler calls `end`.
        self._waking = threading.RLock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._acceptor = Acceptor(folder.address(device), partial(serve, self.state))

    def end(self, why: str, *, patience_s: float = _END_S) -> None:
        """End the service: `run` returns. Callable from any thread and from a signal handler.

        Args:
            why: The reason, for the log.
            patience_s: Time for executions in progress; waiting executions fail at once.
        """
        with self._waking:
            if self._ending is None:
                self._ending, self._patience_s = why, patience_s
                os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serve until there are no clients, or until `end`; `close` must be called afterwards."""
        poll = select.poll()
        poll.register(self._acceptor, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._ending is None:
            now = self._clock.now()
            with self._idle_lock:
                left_s = self._idle.ends_at - now
            if left_s <= 0:
                if not self._acceptor.accept():  # a client may have connected just now
                    self.end("it has had no clients for a while")
                continue
            poll.poll(min(left_s, _CHECK_S) * 1e3)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            self._acceptor.accept()
            self._periodically()
            limit_s = self._timeouts.run_s
            if (what := self.state.scheduler.overdue(limit_s)) is not None:
                why = f"an execution for {what} has been running for {limit_s:g} s"
                self.end(why, patience_s=0.0)

    def close(self) -> bool:
        """End executions, disconnect clients and close the device; False if an execution hangs."""
        _log.info("the service ends: %s", self._ending)
        # The socket is removed first, so that new clients wait for the next service.
        with contextlib.suppress(OSError):
            os.unlink(f"{file_name(self._device)}.sock", dir_fd=self._folder.descriptor)
        self._acceptor.close()
        self.state.scheduler.close(self._patience_s)
        # At first only reading ends, so that pending responses are sent.
        if not (
            self._acceptor.disconnect_all(Channel.shut_down_reading, self._patience_s)
            or self._acceptor.disconnect_all(Channel.shut_down, _END_S)
        ):
            return False
        self.state.close_device()
        with self._waking:
            os.close(self._wake)
        return True

    def _note_clients(self) -> None:
        with self._idle_lock:
            self._idle.note(len(self.state.clients()), self._clock.now())
        os.eventfd_write(self._wake, 1)


class IdleTimeout:
    """The time at which a service without clients ends. Pure: receives the time as an argument."""

    def __init__(self, grace_s: float, now: float) -> None:
        self._grace_s = grace_s
        self._idle_since: float | None = now

    def note(self, clients: int, now: float) -> None:
        """Set the current number of clients."""
        if clients:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    @property
    def ends_at(self) -> float:
        """The time at which the service ends; infinite while there are clients."""
        return math.inf if self._idle_since is None else self._idle_since + self._grace_s


# -------------------------------------------------------------------------------- the listener


@dataclass(frozen=True, slots=True)
class _Peer:
    pid: int
    thread: threading.Thread


class Acceptor:
    """The listening socket, and a thread for each connection.

    One thread calls `accept`, `close` and `disconnect_all`.
    """

    def __init__(self, address: str, serve: Callable[[Channel, int], None]) -> None:
        """Start to listen.

        Args:
            address: The address of the socket.
            serve: Serves one connection of a process, in its own thread; must not raise.

        Raises:
            OSError: The address cannot be used.
        """
        self._serve = serve
        self._lock = threading.Lock()
        self._peers: dict[Channel, _Peer] = {}
        self._listener = _listen(address)

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._listener.fileno()

    def accept(self) -> bool:
        """Accept all waiting connections; return whether a connection was waiting."""
        accepted = False
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return accepted
            except OSError as error:  # e.g. no descriptors: connections stay in the backlog
                _log.warning("no connection can be accepted: %s", error)
                time.sleep(_FULL_S)
                return accepted
            accepted = True
            try:
                pid, uid = peer_of(connection)
                self._admit(connection, pid, uid)
            except (OSError, RuntimeError) as error:  # no memory, or no more threads
                _log.warning("a connection is refused: %s", error)
                connection.close()
        return accepted

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def disconnect_all(self, end: Callable[[Channel], None], within_s: float) -> bool:
        """Call `end` for all connections; return whether their threads ended in time."""
        with self._lock:
            peers = dict(self._peers)
        for channel in peers:
            end(channel)
        until = time.monotonic() + within_s
        for peer in peers.values():
            peer.thread.join(max(0.0, until - time.monotonic()))
        return not any(peer.thread.is_alive() for peer in peers.values())

    def _admit(self, connection: socket.socket, pid: int, uid: int) -> None:
        """Start the thread of a connection, or refuse it.

        Raises OSError or RuntimeError if there are no more resources.
        """
        with self._lock:
            others = [peer.pid for peer in self._peers.values()]
        why = ""
        if uid != os.geteuid():
            why = f"found user {uid}, expected {os.geteuid()}"
        elif others.count(pid) >= _MOST_OF_ONE:
            why = f"found {_MOST_OF_ONE} connections of process {pid} already, expected fewer"
        elif len(others) >= _MOST_CONNECTIONS:
            why = f"found {_MOST_CONNECTIONS} connections already, expected fewer"
        if why:
            _log.warning("a connection of pid %d, user %d is refused: %s", pid, uid, why)
            _refuse(connection, why)
            return
        channel = Channel(connection)
        thread = threading.Thread(
            target=self._handle, args=(channel, pid), name=f"pid {pid}", daemon=True
        )
        with self._lock:
            self._peers[channel] = _Peer(pid, thread)
        try:
            thread.start()
        except BaseException:
            with self._lock:
                del self._peers[channel]
            raise

    def _handle(self, channel: Channel, pid: int) -> None:
        try:
            self._serve(channel, pid)
        finally:
            with self._lock:
                self._peers.pop(channel, None)
            channel.close()


def _refuse(connection: socket.socket, why: str) -> None:
    """Send the reason without blocking. A client that has not sent its message yet may retry."""
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.recv(1)  # closing a socket with unread data would discard the response
        connection.send(framed(Kind.CONTROL, pack_json({"refused": why})))


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(address)
        Path(address).chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
