"""Removal of the server's resources from forked children of this process.

Models fork, by `os.fork`, `multiprocessing` or a library. The child is not the server. It has the
descriptors, signal handlers and locks of its parent, but none of its threads. The functions here
register what a child must close, reset or find unlocked; hooks of `os.fork` do the rest.

All state is at module level, because the hooks apply to the whole process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import stat
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NoReturn

#: The error of a model that calls the server from a forked child.
NO_SERVER = (
    "A process that a model has forked cannot call the server: only the model's own process can."
)

#: The number of forks between the original process and this one. An object that stores the value
#: can find out whether it is in a forked child by now.
generation = 0

_handled: dict[int, object] = {}
_ports: set[int] = set()
_descriptors: set[int] = set()
_locks: list[tuple[Callable[[], object], Callable[[], object]]] = []
_callbacks: list[Callable[[], None]] = []


def default_in_forks(number: int) -> None:
    """Reset the current handler of a signal in forked children. Call it on the main thread."""
    _handled[number] = signal.getsignal(number)


def close_port_in_forks(port: int) -> None:
    """Close a TCP port, and its connections, in forked children."""
    _ports.add(port)


def close_in_forks(descriptor: int) -> None:
    """Close a descriptor in forked children. It must stay open until this process ends."""
    _descriptors.add(descriptor)


def hold_for_forks(acquire: Callable[[], object], release: Callable[[], object]) -> None:
    """Acquire a lock around forks, so that no other thread holds it when a child is made."""
    _locks.append((acquire, release))


def call_in_forks(call: Callable[[], None]) -> None:
    """Call a function in each forked child, before any other code."""
    _callbacks.append(call)


def end_fork(error: BaseException | None) -> NoReturn:
    """End this forked child like a program that raises `error`, or that ends normally."""
    code = 0 if error is None else 1
    with contextlib.suppress(Exception):  # the parent may have ended and closed the streams
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            code = error.code or 0
        elif isinstance(error, SystemExit):
            print(error.code, file=sys.stderr)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


# ----------------------------------------------------------------------------------- the hooks


class _Mask(threading.local):
    """The signal mask of the forking thread, changed while it forks."""

    before: set[signal.Signals | int] | None = None

    def block(self) -> None:
        """Block signals to the child until it has its own handlers.

        Python would drop such a signal, since the parent's handler is gone.
        """
        if _handled:
            self.before = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)

    def restore(self) -> None:
        if self.before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
            self.before = None


_mask = _Mask()


def _before() -> None:
    _children.before_fork()
    # The newest first, as in `os.register_at_fork`: a lock may be taken while an older one is held.
    for acquire, _ in reversed(_locks):
        acquire()
    _mask.block()


def _in_parent() -> None:
    _mask.restore()
    for _, release in _locks:
        release()


def _in_child() -> None:
    global generation
    generation += 1
    for _, release in _locks:
        with contextlib.suppress(RuntimeError):  # some locks replace themselves in a child
            release()
    if _handled:
        # The descriptor belongs to the server's event loop: a signal here would stop the server.
        signal.set_wakeup_fd(-1)
    for number, handler in _handled.items():
        if signal.getsignal(number) == handler:  # a handler that the model has set stays
            default = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if default else signal.SIG_DFL)
    _handled.clear()
    _mask.restore()
    _close({*_descriptors, *_port_descriptors()})
    _children.in_child()
    for call in _callbacks:
        call()


def _port_descriptors() -> Iterator[int]:
    """Yield the descriptors that listen to a port of the server, or are connected to it."""
    if not _ports:
        return
    for descriptor in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the descriptor of the directory is closed already
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            end = socket.socket(fileno=os.dup(descriptor))
            with end:
                name = end.getsockname()
            if end.family in (socket.AF_INET, socket.AF_INET6) and name[1] in _ports:
                yield descriptor


def _close(descriptors: set[int]) -> None:
    """Replace descriptors by /dev/null: their owners may close the numbers again later."""
    if not descriptors:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


# ----------------------------------------------------------------------------------- children

_RECORD = struct.Struct("<qq")  # the owner's number and the process id


class _ForkedChildren:
    """The process ids of forked children, by the owner that forked them.

    Each child writes its process id to a pipe, because the hook of the parent does not receive it.
    """

    def __init__(self) -> None:
        self._pipe: tuple[int, ...] = ()
        self._owner_of_thread: Callable[[], int | None] = lambda: None
        self._forking = threading.local()
        self._pids: dict[int, list[int]] = {}

    def start(self, owner_of_thread: Callable[[], int | None]) -> None:
        self._owner_of_thread = owner_of_thread
        if not self._pipe and hasattr(os, "waitid"):
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)

    def before_fork(self) -> None:
        self._forking.owner = self._owner_of_thread() if self._pipe else None
        if self._forking.owner is not None:
            self._read()  # makes room in the pipe for the record of the new child

    def in_child(self) -> None:
        """Write the record of this child, which has no children of its own yet."""
        if self._forking.owner is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe[1], _RECORD.pack(self._forking.owner, os.getpid()))
        self._pipe = ()
        self._pids.clear()

    def of(self, owner: int) -> list[int]:
        self._read()
        return [pid for pid in self._pids.get(owner, ()) if _lives(pid)]

    def _read(self) -> None:
        if not self._pipe:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe[0], 64 * _RECORD.size):
                for owner, pid in _RECORD.iter_unpack(data):
                    self._pids.setdefault(owner, []).append(pid)


_children = _ForkedChildren()


def record_children(owner_of_thread: Callable[[], int | None]) -> None:
    """Record forked children by their owners; `owner_of_thread` returns the calling thread's."""
    _children.start(owner_of_thread)


def living_children(owner: int) -> list[int]:
    """Return the ids of the processes forked for `owner` that have not ended."""
    return _children.of(owner)


def do_not_join(pids: Collection[int]) -> None:
    """Exclude children from those that `multiprocessing` joins when this process exits.

    Daemons are not excluded; `multiprocessing` terminates them.
    """
    for child in multiprocessing.active_children():
        if child.pid in pids and not child.daemon:
            multiprocessing.process._children.discard(child)  # type: ignore[attr-defined]


def _lives(pid: int) -> bool:
    try:
        # WNOWAIT leaves the exit status for the code that has started the process.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


if hasattr(os, "register_at_fork"):  # missing on systems without fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
