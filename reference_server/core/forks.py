"""Cleans up in forked child processes: models can fork, and their children are not the server.

A child inherits the descriptors, signal handlers and locks of its parent, but none of its threads.
Modules register here what a child must not inherit. The hooks run at every `os.fork`, whether a
model, `multiprocessing` or a library calls it.
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

#: The error of a child process that calls the server.
NO_SERVER = (
    "A process that a model has forked cannot call the server: only the model's own process can."
)

#: The number of forks between the server and this process. A changed value shows that the code now
#: runs in a child.
generation = 0

_handled: dict[int, object] = {}
_ports: set[int] = set()
_descriptors: set[int] = set()
_locks: list[tuple[Callable[[], object], Callable[[], object]]] = []
_in_children: list[Callable[[], None]] = []


def default_in_forks(number: int) -> None:
    """Have children reset the current handler of a signal. Must run on the main thread."""
    _handled[number] = signal.getsignal(number)


def listens(port: int) -> None:
    """Have children close the listening sockets and connections of a TCP port."""
    _ports.add(port)


def close_in_forks(descriptor: int) -> None:
    """Have children close a descriptor. It must stay open as long as this process."""
    _descriptors.add(descriptor)


def hold_for_forks(acquire: Callable[[], object], release: Callable[[], object]) -> None:
    """Acquire a lock before each fork, so that no child inherits it locked by a missing thread."""
    _locks.append((acquire, release))


def call_in_forks(call: Callable[[], None]) -> None:
    """Have each child call `call` before any other code runs in it."""
    _in_children.append(call)


def end_fork(error: BaseException | None) -> NoReturn:
    """End this child as a Python program ends after `error`, or successfully."""
    code = 0 if error is None else 1
    with contextlib.suppress(Exception):  # the parent may have closed the streams
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
    """The signal mask of the forking thread, which is restored after the fork."""

    before: set[signal.Signals | int] | None = None

    def block(self) -> None:
        """Block signals until the child has its own handlers.

        Otherwise Python would find the parent's handler removed, and lose the signal.
        """
        if _handled:
            self.before = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)

    def unblock(self) -> None:
        """Restore the signal mask."""
        if self.before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
            self.before = None


_mask = _Mask()


def _before() -> None:
    _births.note()
    # The newest first, as in `os.register_at_fork`: a lock may depend on locks registered before.
    for acquire, _ in reversed(_locks):
        acquire()
    _mask.block()


def _in_parent() -> None:
    _mask.unblock()
    for _, release in _locks:
        release()


def _in_child() -> None:
    global generation
    generation += 1
    for _, release in _locks:
        with contextlib.suppress(RuntimeError):  # a lock that resets itself in children
            release()
    if _handled:
        # The descriptor belongs to the server's event loop: a signal in the child would stop it.
        signal.set_wakeup_fd(-1)
    for number, handler in _handled.items():
        if signal.getsignal(number) == handler:  # otherwise a model has set its own
            default = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if default else signal.SIG_DFL)
    _handled.clear()
    _mask.unblock()
    _close({*_descriptors, *_served()})
    _births.report()
    for call in _in_children:
        call()


def _served() -> Iterator[int]:
    """Yield the descriptors of listening sockets and connections of the server's ports."""
    if not _ports:
        return
    for descriptor in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the folder's own descriptor is closed by now
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            end = socket.socket(fileno=os.dup(descriptor))
            with end:
                name = end.getsockname()
            if end.family in (socket.AF_INET, socket.AF_INET6) and name[1] in _ports:
                yield descriptor


def _close(descriptors: set[int]) -> None:
    """Replace descriptors by /dev/null, so that their owners can still close their numbers."""
    if not descriptors:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


# ----------------------------------------------------------------------------------- children

_BIRTH = struct.Struct("<qq")


class _Births(threading.local):
    """Reports each child and the owner on whose behalf it was forked, through a pipe."""

    owner: int | None = None

    def note(self) -> None:
        """Store the owner, before a fork on this thread."""
        self.owner = _current_owner() if _pipe else None
        if self.owner is not None:
            _read_births()  # so that the pipe has room for the child's report

    def report(self) -> None:
        """Write the report, in the child."""
        if self.owner is not None:
            with contextlib.suppress(OSError):
                os.write(_pipe[1], _BIRTH.pack(self.owner, os.getpid()))
        _forget_births()


_births = _Births()
_pipe: tuple[int, ...] = ()
_children: dict[int, list[int]] = {}


def _no_owner() -> int | None:
    return None


_current_owner: Callable[[], int | None] = _no_owner


def count_children_by(owner: Callable[[], int | None]) -> None:
    """Count the children forked from now on by owner.

    Args:
        owner: Returns the owner of a child; it is called on the thread that forks. A child without
            an owner is not counted.
    """
    global _pipe, _current_owner
    _current_owner = owner
    if not _pipe and hasattr(os, "waitid"):
        _pipe = os.pipe()
        for end in _pipe:
            os.set_blocking(end, False)


def children_of(owner: int) -> list[int]:
    """Return the process ids of the running children of an owner."""
    _read_births()
    return [pid for pid in _children.get(owner, ()) if _is_running(pid)]


def detach(pids: Collection[int]) -> None:
    """Have `multiprocessing` not wait for these children when this process exits.

    It still ends those that are daemons.
    """
    for child in multiprocessing.active_children():
        if child.pid in pids and not child.daemon:
            multiprocessing.process._children.discard(child)  # type: ignore[attr-defined]


def _read_births() -> None:
    if not _pipe:
        return
    with contextlib.suppress(BlockingIOError):
        while data := os.read(_pipe[0], 64 * _BIRTH.size):
            for owner, pid in _BIRTH.iter_unpack(data):
                _children.setdefault(owner, []).append(pid)


def _is_running(pid: int) -> bool:
    try:
        # WNOWAIT leaves the exit status to the code that started the process.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _forget_births() -> None:
    """Discard the parent's state: a child does not count its own children."""
    global _pipe
    _pipe = ()
    _children.clear()


if hasattr(os, "register_at_fork"):  # absent where processes cannot fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
