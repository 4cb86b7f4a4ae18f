"""The start of a device service.

A file lock ensures that there is only one service. The client that acquires the lock starts the
service and passes the lock to it; the service holds it until its process ends. So a client that
acquires the lock knows that there is no service, that an existing socket is stale, and that no
other process starts a service. Other clients wait.
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
"""The message of a service that listens; any other message is an error."""

# The code of the service's process. It uses the sys.path of this process. The fork detaches it from
# the client, so that it may live longer, and no process has to wait for it. A service that hangs
# before it listens ends itself, because it would hold the lock for ever, and dumps its stack to the
# log. The lock file contains the process ID, unless the disk is full.
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
"""Number of characters at the end of a log that an error contains."""

_TICK_S: Final = 0.05
"""Interval of checks whether the service is still needed."""
_LATER_S: Final = 5.0
"""Additional time for a service that exceeded its time limit to end itself and write its log."""


def start(
    device: str, folder: RuntimeFolder, timeouts: Timeouts, check_needed: Callable[[], None]
) -> bool:
    """Start the device's service, and wait until it listens.

    Args:
        device: Name of the device.
        folder: The runtime folder.
        timeouts: Time limits.
        check_needed: Called while waiting; an exception ends the wait, but not the service.

    Returns:
        False if there is a service, or another process starts one.

    Raises:
        ServiceFault: The service does not start.
    """
    try:
        lock = _lock(device, folder)
        if lock is None:
            return False
        try:
            with contextlib.suppress(FileNotFoundError):  # left by a service that was killed
                os.unlink(f"{file_name(device)}.sock", dir_fd=folder.descriptor)
            message = _spawn(device, folder, timeouts, lock.descriptor, check_needed)
        finally:
            lock.close()
    except OSError as error:
        where = f"the device service of {device} cannot be started: {folder.path}"
        raise ServiceFault(f"{where}: {error}") from error
    if message != READY:
        reason = message.decode(errors="replace") or _tail(device, folder)
        raise ServiceFault(
            f"the device service of {device} did not start: {reason}\n"
            f"its log is {folder.file(device, 'log')}"
        )
    return True


def lock_holder(device: str, folder: RuntimeFolder) -> str:
    """Return which process holds the device's lock, and the fix if it hangs; empty if unknown."""
    with contextlib.suppress(OSError, ValueError):
        lock = _lock(device, folder)
        if lock is None:
            pid = int(folder.file(device, "lock").read_text())
            return f"; process {pid} is its service, or is starting it: end it if it hangs"
        lock.close()
    return ""


class _Lock:
    """The device's lock, held by this process and closed in its forks, which would hold it too."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close_in_forks(self)

    def close_in_fork(self) -> None:
        self.close()

    def close(self) -> None:
        """Close it here; a process that inherited it still holds the lock. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _lock(device: str, folder: RuntimeFolder) -> _Lock | None:
    """Acquire the lock; None if another process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = _Lock(os.open(f"{file_name(device)}.lock", flags, 0o600, dir_fd=folder.descriptor))
    try:
        # flock, not fcntl: the lock belongs to the open file, so it is inherited.
        fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    os.ftruncate(lock.descriptor, 0)  # remove the process ID of the last holder
    return lock


def _spawn(
    device: str,
    folder: RuntimeFolder,
    timeouts: Timeouts,
    lock: int,
    check_needed: Callable[[], None],
) -> bytes:
    """Start the process; return its message."""
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
            start_new_session=True,  # not interrupted by Ctrl-C in the server's terminal
        )
        os.close(writing)
        writing = -1
        try:
            return _message(reading, timeouts.start_s + _LATER_S, check_needed)
        finally:
            process.kill()  # the parent of the service, which has forked or never will
            process.wait()
    finally:
        for descriptor in (output, reading, writing):
            if descriptor >= 0:
                os.close(descriptor)


def _message(reading: int, within_s: float, check_needed: Callable[[], None]) -> bytes:
    """Read the message of the service until it is READY or the pipe is closed."""
    until = time.monotonic() + within_s
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    message = b""
    while time.monotonic() < until:
        check_needed()
        if poll.poll(_TICK_S * 1e3):
            part = os.read(reading, 4096)
            if not part:
                return message
            message += part
            if message == READY:  # without the end, which a fork of this process may prevent
                return message
    return message or f"no response within {within_s:g} s".encode()


def _tail(device: str, folder: RuntimeFolder) -> str:
    with contextlib.suppress(OSError):
        text = folder.file(device, "log").read_text(errors="replace").strip()
        return f"it ended with\n{text[-_TAIL:]}" if text else "it ended without a message"
    return "it ended without a message"
