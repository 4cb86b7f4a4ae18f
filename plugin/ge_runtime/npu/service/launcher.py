"""Starting a device service, where there is none.

One lock decides. It is handed on to the service, which holds it as long as it lives, however it
ends. Whoever gets the lock therefore knows that there is no service, that a socket found is
stale, and that nobody else starts one; whoever does not get it waits for the one who did.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ge_runtime.errors import ServiceFault
from ge_runtime.npu.service.channel import close_in_forks
from ge_runtime.npu.service.protocol import Timeouts
from ge_runtime.npu.service.runtime_folder import RuntimeFolder, file_name, open_log

READY: Final = b"ready"
"""What the service says once it listens; anything else is why it does not."""

# What the service's interpreter runs. Modules are found where this process finds them. The fork
# makes it nobody's child: it may outlive whoever starts it, and is nobody's to wait for. One that
# hangs before it listens ends itself, or it would have the lock for ever; its log then says where
# it stood. The lock's file says which process has it, unless the disk is full.
_BOOT: Final = """\
import faulthandler, os, sys
if os.fork():
    os._exit(0)
_, device, folder, timeouts, within_s, descriptor, lock, ready, *sys.path = sys.argv
faulthandler.dump_traceback_later(float(within_s), exit=True)
try:
    os.pwrite(int(lock), str(os.getpid()).encode(), 0)
except OSError:
    pass
sys.argv[:] = ['']
from ge_runtime.npu.service.server import main
main(device, folder, timeouts, int(descriptor), int(lock), int(ready))
"""

_TAIL: Final = 2000
"""Characters of a log that are shown."""

_TICK_S: Final = 0.05
"""Between two questions whether the service is still wanted."""
_LATER_S: Final = 5.0
"""What a service gets beyond its limit, to end itself and tell where it stood."""


def start(
    device: str, folder: RuntimeFolder, timeouts: Timeouts, wanted: Callable[[], None]
) -> bool:
    """Start the device's service, unless there is one, or another is being started.

    Blocks until it listens; False if it is somebody else's affair. wanted: asked now and then; what
    it raises ends the waiting, and what has been started goes on alone. Raises ServiceFault if the
    service does not come to listen.
    """
    try:
        lock = _lock(device, folder)
        if lock is None:
            return False
        try:
            with contextlib.suppress(FileNotFoundError):  # of one that was killed
                os.unlink(f"{file_name(device)}.sock", dir_fd=folder.descriptor)
            said = _spawn(device, folder, timeouts, lock.descriptor, wanted)
        finally:
            lock.close()
    except OSError as error:
        where = f"the device service of {device} cannot be started: {folder.path}"
        raise ServiceFault(f"{where}: {error}") from error
    if said != READY:
        why = said.decode(errors="replace") or _tail(device, folder)
        raise ServiceFault(
            f"the device service of {device} has not come to listen: {why}\n"
            f"its log is {folder.file(device, 'log')}"
        )
    return True


def lock_holder(device: str, folder: RuntimeFolder) -> str:
    """Which process has the device's lock, and the cure if it hangs; empty if nobody knows."""
    with contextlib.suppress(OSError, ValueError):
        lock = _lock(device, folder)
        if lock is None:
            pid = int(folder.file(device, "lock").read_text())
            return f"; process {pid} is its service, or is to be: end it if it hangs"
        lock.close()
    return ""


class _Lock:
    """The device's lock, had by this process. A fork that kept it would keep it from all others."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close_in_forks(self)

    def close_in_fork(self) -> None:
        self.close()

    def close(self) -> None:
        """Close it here: a process that inherited it still has the lock. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _lock(device: str, folder: RuntimeFolder) -> _Lock | None:
    """The lock; None if somebody else has it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = _Lock(os.open(f"{file_name(device)}.lock", flags, 0o600, dir_fd=folder.descriptor))
    try:
        # Of the open file, not of the process as fcntl's: whoever inherits the descriptor has it.
        fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    os.ftruncate(lock.descriptor, 0)  # it may name a process that had it before
    return lock


def _spawn(
    device: str, folder: RuntimeFolder, timeouts: Timeouts, lock: int, wanted: Callable[[], None]
) -> bytes:
    """Start the process; what it says until it listens or ends."""
    output = open_log(device, folder)
    reading = writing = -1
    try:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        given = (device, str(folder.path), json.dumps(asdict(timeouts)), str(timeouts.start_s))
        numbers = (str(folder.descriptor), str(lock), str(writing))
        paths = [str(Path(path).absolute()) for path in sys.path]  # its working directory is /
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *given, *numbers, *paths],
            pass_fds=(lock, folder.descriptor, writing),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,  # a Ctrl-C in the server's terminal must not reach it
        )
        os.close(writing)
        writing = -1
        try:
            return _said(reading, timeouts.start_s + _LATER_S, wanted)
        finally:
            process.kill()  # it has long handed on to the service, or never will
            process.wait()
    finally:
        for descriptor in (output, reading, writing):
            if descriptor >= 0:
                os.close(descriptor)


def _said(reading: int, within_s: float, wanted: Callable[[], None]) -> bytes:
    until = time.monotonic() + within_s
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    said = b""
    while time.monotonic() < until:
        wanted()
        if poll.poll(_TICK_S * 1e3):
            part = os.read(reading, 4096)
            if not part:
                return said
            said += part
            if said == READY:  # its end may never come: a fork of this process may have the pipe
                return said
    return said or f"found no sign of it within {within_s:g} s".encode()


def _tail(device: str, folder: RuntimeFolder) -> str:
    with contextlib.suppress(OSError):
        text = folder.file(device, "log").read_text(errors="replace").strip()
        return f"it ended with\n{text[-_TAIL:]}" if text else "it ended without a word"
    return "it ended without a word"
