"""The process of a device service: it owns a device for its clients, and ends when none needs it.

`main` is what the launcher's interpreter runs.
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
from ge_runtime.npu.service.launcher import READY
from ge_runtime.npu.service.protocol import Kind, Timeouts, framed, pack_json
from ge_runtime.npu.service.runtime_folder import LogFile, RuntimeFolder, file_name
from ge_runtime.npu.service.session import serve
from ge_runtime.npu.service.state import ServiceState

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""Between two looks at how long executions have been running."""
_END_S: Final = 5.0
"""What executions in progress get, to end, when the service does."""
_LEAVE_S: Final = 30.0
"""From the end of its service to that of the process, whatever hangs then."""
_FULL_S: Final = 1.0
"""After a connection that could not be had, for want of descriptors."""

_BACKLOG: Final = 128
_MOST_CONNECTIONS: Final = 1024
_MOST_OF_ONE: Final = _MOST_CONNECTIONS // 2
"""Of one process: one that lets go of none of them does not keep all others out."""
_DESCRIPTORS: Final = 65_536
"""Enough for all connections and arenas of many clients."""


# ---------------------------------------------------------------------------------- the process


def main(device: str, path: str, timeouts: str, descriptor: int, lock: int, ready: int) -> None:
    """Own the device until nobody needs it, then exit.

    path, descriptor: the runtime folder. timeouts: as JSON. lock: the device's, held until the
    process ends. ready: where to say that it listens. All descriptors are inherited.
    """
    folder = RuntimeFolder(Path(path), descriptor)
    for inherited in (descriptor, lock, ready):
        os.set_inheritable(inherited, False)  # a child of a library would keep the lock
    faulthandler.enable()
    log = LogFile(device, folder)
    log.begin()
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"ge_runtime {device}")
    _forget_the_starter(folder)
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
        logging.exception("it cannot start")
        _tell(ready, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: server.end(signal.Signals(number).name))
    logging.info("the device service of %s, pid %d", device, os.getpid())
    faulthandler.cancel_dump_traceback_later()  # which the launcher has set
    _tell(ready, READY)
    server.run()
    faulthandler.dump_traceback_later(_LEAVE_S, exit=True)
    ended = server.close()
    logging.shutdown()
    if not ended:  # an execution hangs, and would hold the process
        os._exit(1)


def _forget_the_starter(folder: RuntimeFolder) -> None:
    """What a process inherits, and what must not depend on which client was the first."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    # Cleaners of /tmp leave a folder alone that is locked (systemd, tmpfiles.d(5), "Age"), and
    # with it socket and lock file.
    with contextlib.suppress(OSError):
        fcntl.flock(folder.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _tell(ready: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, text)
    os.close(ready)


# ----------------------------------------------------------------------------------- the server


class Server:
    """Accepts the clients of one device. `run` and `close` belong to one thread."""

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
        """Listens from now on. Raises OSError if it cannot.

        open_backend, cores: see `ServiceState`. periodically: called every second or so.
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
        self._waking = threading.RLock()  # guards the next; a signal may come to who has it
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._acceptor = Acceptor(folder.address(device), partial(serve, self.state))

    def end(self, why: str, *, patience_s: float = _END_S) -> None:
        """End the service: `run` returns. From any thread, and from a signal's handler.

        patience_s: for executions under way; those that wait for their turn are told at once.
        """
        with self._waking:
            if self._ending is None:
                self._ending, self._patience_s = why, patience_s
                os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serve until nobody needs it, or until `end`; `close` must follow."""
        poll = select.poll()
        poll.register(self._acceptor, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._ending is None:
            now = self._clock.now()
            with self._idle_lock:
                left_s = self._idle.ends_at - now
            if left_s <= 0:
                if not self._acceptor.accept():  # nobody came at the last moment
                    self.end("nobody has needed it for a while")
                continue
            poll.poll(min(left_s, _LOOK_S) * 1e3)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            self._acceptor.accept()
            self._periodically()
            limit_s = self._timeouts.run_s
            if (what := self.state.scheduler.overdue(limit_s)) is not None:
                why = f"an execution for {what} has been running for {limit_s:g} s"
                self.end(why, patience_s=0.0)

    def close(self) -> bool:
        """Have executions end, leave all clients, close the device; False if something hangs."""
        _log.info("it ends: %s", self._ending)
        # The name first: who looks for a service from now on waits for the next one.
        with contextlib.suppress(OSError):
            os.unlink(f"{file_name(self._device)}.sock", dir_fd=self._folder.descriptor)
        self._acceptor.close()
        self.state.scheduler.close(self._patience_s)
        leave = self._acceptor.disconnect_all
        # First gently: answers that are being sent still go out.
        if not (
            leave(Channel.shut_down_reading, self._patience_s) or leave(Channel.shut_down, _END_S)
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
    """When the service is no longer needed: so long after its start, or after its last client.

    Pure: facts and `now` in.
    """

    def __init__(self, grace_s: float, now: float) -> None:
        self._grace_s = grace_s
        self._alone_since: float | None = now

    def note(self, clients: int, now: float) -> None:
        """So many clients are there now."""
        if clients:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now

    @property
    def ends_at(self) -> float:
        """Infinite while there are clients."""
        return math.inf if self._alone_since is None else self._alone_since + self._grace_s


# -------------------------------------------------------------------------------- the listener


@dataclass(frozen=True, slots=True)
class _Peer:
    pid: int
    thread: threading.Thread


class Acceptor:
    """The socket that clients connect to, and a thread for each of their connections.

    `accept`, `close` and `disconnect_all` belong to one thread.
    """

    def __init__(self, address: str, serve: Callable[[Channel, int], None]) -> None:
        """Listens from now on. Raises OSError if it cannot.

        serve: serves one connection of a process, in a thread of its own; raises nothing.
        """
        self._serve = serve
        self._lock = threading.Lock()
        self._peers: dict[Channel, _Peer] = {}
        self._listener = _listen(address)

    def fileno(self) -> int:
        """The descriptor, to wait for connections."""
        return self._listener.fileno()

    def accept(self) -> bool:
        """Accept those that wait, as many as can wait at a time; whether there was one."""
        came = False
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return came
            except OSError as error:  # out of descriptors, say: they stay in the backlog
                _log.warning("nobody can be let in: %s", error)
                time.sleep(_FULL_S)
                return came
            came = True
            try:
                pid, uid = peer_of(connection)
                self._admit(connection, pid, uid)
            except (OSError, RuntimeError) as error:  # no memory, or no thread more
                _log.warning("a connection is refused: %s", error)
                connection.close()
        return came

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()

    def disconnect_all(self, end: Callable[[Channel], None], within_s: float) -> bool:
        """End all connections in this way; whether their threads have ended within that time."""
        with self._lock:
            peers = dict(self._peers)
        for channel in peers:
            end(channel)
        until = time.monotonic() + within_s
        for peer in peers.values():
            peer.thread.join(max(0.0, until - time.monotonic()))
        return not any(peer.thread.is_alive() for peer in peers.values())

    def _admit(self, connection: socket.socket, pid: int, uid: int) -> None:
        """Raises OSError or RuntimeError if the machine gives no more."""
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
    """Tell why, as far as that needs no waiting: who has said nothing yet has to ask again."""
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.recv(1)  # what is left unread takes along what is said
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
