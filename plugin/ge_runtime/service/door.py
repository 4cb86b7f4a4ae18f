"""Where clients come in: the socket that a device service listens on, and a thread for each."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_runtime.service.channel import Channel, peer_of
from ge_runtime.service.protocol import Kind, framed, pack_json

_log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_MOST_CONNECTIONS: Final = 1024
_MOST_OF_ONE: Final = _MOST_CONNECTIONS // 2
"""Of one process: one that lets go of none of them does not keep all others out."""
_FULL_S: Final = 1.0
"""After a connection that could not be had, for want of descriptors."""


@dataclass(frozen=True, slots=True)
class _Guest:
    pid: int
    thread: threading.Thread


class Door:
    """Lets connections in. `let_in`, `close` and `leave` belong to one thread."""

    def __init__(self, address: str, serve: Callable[[Channel, int], None]) -> None:
        """Listens from now on. Raises OSError if it cannot.

        serve: serves one connection of a process, in a thread of its own; raises nothing.
        """
        self._serve = serve
        self._lock = threading.Lock()
        self._guests: dict[Channel, _Guest] = {}
        self._listener = _listen(address)

    def fileno(self) -> int:
        """The descriptor, to wait for whoever knocks."""
        return self._listener.fileno()

    def let_in(self) -> bool:
        """Let in who knocks, as many as can wait at a time; whether there was anybody."""
        came = False
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return came
            except OSError as error:  # out of descriptors, say: whoever knocks has to wait
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
        """Let nobody in any more."""
        self._listener.close()

    def leave(self, end: Callable[[Channel], None], within_s: float) -> bool:
        """End all connections in this way; whether their threads have ended within that time."""
        with self._lock:
            guests = dict(self._guests)
        for channel in guests:
            end(channel)
        until = time.monotonic() + within_s
        for guest in guests.values():
            guest.thread.join(max(0.0, until - time.monotonic()))
        return not any(guest.thread.is_alive() for guest in guests.values())

    def _admit(self, connection: socket.socket, pid: int, uid: int) -> None:
        """Raises OSError or RuntimeError if the machine gives no more."""
        with self._lock:
            others = [guest.pid for guest in self._guests.values()]
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
            target=self._host, args=(channel, pid), name=f"pid {pid}", daemon=True
        )
        with self._lock:
            self._guests[channel] = _Guest(pid, thread)
        try:
            thread.start()
        except BaseException:
            with self._lock:
                del self._guests[channel]
            raise

    def _host(self, channel: Channel, pid: int) -> None:
        try:
            self._serve(channel, pid)
        finally:
            with self._lock:
                self._guests.pop(channel, None)
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
