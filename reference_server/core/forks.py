"""What a forked copy of this process gives up: models fork, and their children are not the server.

A copy has the descriptors, the signal handlers and the locks of its parent, and none of its
threads. Whoever has something that a copy must not have says so here; `os.fork` does the rest, be
it called by a model, by `multiprocessing` or by a library.
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

#: What a model is told that calls the server from a copy.
NO_SERVER = (
    "A process that a model has forked cannot call the server: only the model's own process can."
)

#: One more in each copy of a copy: who remembers it knows whether it is in another process by now.
generation = 0

_handled: dict[int, object] = {}
_ports: set[int] = set()
_descriptors: set[int] = set()
_locks: list[tuple[Callable[[], object], Callable[[], object]]] = []
_in_copies: list[Callable[[], None]] = []


def default_in_forks(number: int) -> None:
    """The handler that a signal has now is this process's alone. On the main thread."""
    _handled[number] = signal.getsignal(number)


def listens(port: int) -> None:
    """Say that this process serves a TCP port: its copies have neither that nor its connections."""
    _ports.add(port)


def close_in_forks(descriptor: int) -> None:
    """Copies do not have this descriptor, which stays open as long as this process."""
    _descriptors.add(descriptor)


def hold_for_forks(acquire: Callable[[], object], release: Callable[[], object]) -> None:
    """Forks wait for a lock: no copy finds it held by a thread that it does not have."""
    _locks.append((acquire, release))


def call_in_forks(call: Callable[[], None]) -> None:
    """Each copy calls `call`, before anything else runs in it."""
    _in_copies.append(call)


def end_fork(error: BaseException | None) -> NoReturn:
    """End this copy as a program ends that raises `error`, or nothing."""
    code = 0 if error is None else 1
    with contextlib.suppress(Exception):  # the streams may be those of a parent that is gone
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
    """Signals that the forking thread lets in, when the fork is over."""

    before: set[signal.Signals | int] | None = None

    def block(self) -> None:
        """Keep what is sent to the copy waiting until it has its own handlers.

        Python would find the parent's handler gone, and drop the signal.
        """
        if _handled:
            self.before = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)

    def unblock(self) -> None:
        """Let in what was let in before."""
        if self.before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
            self.before = None


_mask = _Mask()


def _before() -> None:
    _births.note()
    # The newest first, as `os.register_at_fork` does it: they may wait for those before them.
    for acquire, _ in reversed(_locks):
        acquire()
    _mask.block()


def _in_parent() -> None:
    _mask.unblock()
    for _, release in _locks:
        release()


def _in_copy() -> None:
    global generation
    generation += 1
    for _, release in _locks:
        with contextlib.suppress(RuntimeError):  # a lock that makes itself new in copies
            release()
    if _handled:
        # The descriptor is the other end of the server's loop: a signal of ours would stop it.
        signal.set_wakeup_fd(-1)
    for number, handler in _handled.items():
        if signal.getsignal(number) == handler:  # else it is a model's own, and stays
            default = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if default else signal.SIG_DFL)
    _handled.clear()
    _mask.unblock()
    _give_up({*_descriptors, *_served()})
    _births.tell()
    for call in _in_copies:
        call()


def _served() -> Iterator[int]:
    """The descriptors that listen to a port of the server, or are connected to it."""
    if not _ports:
        return
    for descriptor in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # that of the folder itself is gone already
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            end = socket.socket(fileno=os.dup(descriptor))
            with end:
                name = end.getsockname()
            if end.family in (socket.AF_INET, socket.AF_INET6) and name[1] in _ports:
                yield descriptor


def _give_up(descriptors: set[int]) -> None:
    """Close descriptors, keeping their numbers: what has them may close them once more, later."""
    if not descriptors:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


# ----------------------------------------------------------------------------------- children

_BIRTH = struct.Struct("<qq")


class _Births(threading.local):
    """Which of this process's copies was forked on whose behalf."""

    mother: int | None = None

    def note(self) -> None:
        """Before a fork on this thread."""
        self.mother = _whose() if _pipe else None
        if self.mother is not None:
            _read_births()  # the pipe has room for what this one writes

    def tell(self) -> None:
        """In the copy."""
        if self.mother is not None:
            with contextlib.suppress(OSError):
                os.write(_pipe[1], _BIRTH.pack(self.mother, os.getpid()))
        _forget_births()


_births = _Births()
_pipe: tuple[int, ...] = ()
_children: dict[int, list[int]] = {}


def _nobody() -> int | None:
    return None


_whose: Callable[[], int | None] = _nobody


def tell_apart(whose: Callable[[], int | None]) -> None:
    """From now on copies are counted by what `whose` says on the thread that forks them."""
    global _pipe, _whose
    _whose = whose
    if not _pipe and hasattr(os, "waitid"):
        _pipe = os.pipe()
        for end in _pipe:
            os.set_blocking(end, False)


def children_of(mother: int) -> list[int]:
    """The numbers of the processes forked on behalf of `mother` that have not ended."""
    _read_births()
    return [pid for pid in _children.get(mother, ()) if _lives(pid)]


def let_go(pids: Collection[int]) -> None:
    """Let this process end without waiting for these, which `multiprocessing` does at the exit.

    Those that are daemons are ended then, as ever.
    """
    for child in multiprocessing.active_children():
        if child.pid in pids and not child.daemon:
            multiprocessing.process._children.discard(child)  # type: ignore[attr-defined]


def _read_births() -> None:
    if not _pipe:
        return
    with contextlib.suppress(BlockingIOError):
        while data := os.read(_pipe[0], 64 * _BIRTH.size):
            for mother, pid in _BIRTH.iter_unpack(data):
                _children.setdefault(mother, []).append(pid)


def _lives(pid: int) -> bool:
    try:
        # Only looked at: whoever has started it waits for it.
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _forget_births() -> None:
    """A copy counts its own children, and those are not told of at all."""
    global _pipe
    _pipe = ()
    _children.clear()


if hasattr(os, "register_at_fork"):  # else nothing forks
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_copy)
