"""The start of a device service, and the runtime folder of a user's services.

    cpu.sock    the socket of the service of the device `cpu`, while it is running
    cpu.lock    locked by the service while it is running, with its process ID; never removed,
                because that would be a race
    cpu.log     the log of the current or last service; cpu.log.old is the previous log

Only the user has access to the folder. Files are opened through the folder's descriptor, so that
the folder cannot be replaced by another one.

The lock ensures that there is only one service. The client that acquires the lock starts the
service and passes the lock to it; the service holds the lock until its process ends. So when a
client has acquired the lock, there is no service, an existing socket is stale, and no other process
starts a service. Other clients wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final

from ge_runtime.errors import ServiceFault
from ge_runtime.npu.service.channel import close_in_forks
from ge_runtime.npu.service.protocol import Timeouts

_NAME: Final = "ge_runtime"
_MOST_LOG_BYTES: Final = 2**20
"""Maximum size of a log, after which a new log begins."""


def runtime_folder(environment: Mapping[str, str], uid: int) -> Path:
    """Return the path of a user's folder: in XDG_RUNTIME_DIR if it exists, else in /tmp."""
    given = environment.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_absolute() and Path(given).is_dir():
        return Path(given) / _NAME
    return Path("/tmp") / f"{_NAME}-{uid}"


class RuntimeFolder:
    """An open runtime folder, and a context manager that closes it. Thread-safe."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path | None = None) -> RuntimeFolder:
        """Open the folder at `path`, or this user's folder; create it if it does not exist.

        Raises ServiceFault if other users own it or have access.
        """
        uid = os.geteuid()
        path = path or runtime_folder(os.environ, uid)
        try:
            path.mkdir(0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ServiceFault(
                f"{path}: found {error.strerror}, expected a folder for the device service; "
                "XDG_RUNTIME_DIR can name another place"
            ) from error
        found = os.fstat(descriptor)
        if found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o077:
            os.close(descriptor)
            raise ServiceFault(
                f"{path}: found a folder of user {found.st_uid} with mode "
                f"{stat.S_IMODE(found.st_mode):04o}, expected a folder of user {uid}, mode 0700"
            )
        return cls(path, descriptor)

    def address(self, device: str) -> str:
        """Return the address of a device's socket."""
        # The address has the descriptor, because the path of a socket is limited to 108 bytes
        # (unix(7)), and the folder may have been replaced.
        return f"/proc/self/fd/{self.descriptor}/{file_name(device)}.sock"

    def file(self, device: str, ending: str) -> Path:
        """Return the path of a file, for messages."""
        return self.path / f"{file_name(device)}.{ending}"

    def devices(self) -> list[str]:
        """Return the file names of devices with a socket. Their services may have been killed."""
        names = os.listdir(self.descriptor)  # noqa: PTH208 - pathlib has no descriptors
        return sorted(name.removesuffix(".sock") for name in names if name.endswith(".sock"))

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> RuntimeFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def file_name(device: str) -> str:
    """Return the device's name in file names: npu-0 for npu:0."""
    return device.replace(":", "-")


def open_log(device: str, folder: RuntimeFolder) -> int:
    """Open a new log for appending, and rename the last one to .old. Raises OSError."""
    log = f"{file_name(device)}.log"
    with contextlib.suppress(FileNotFoundError):
        os.rename(log, f"{log}.old", src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(log, flags, 0o600, dir_fd=folder.descriptor)


class LogFile:
    """The log file, which receives stdout and stderr of this process and of its libraries."""

    def __init__(self, device: str, folder: RuntimeFolder) -> None:
        self._device = device
        self._folder = folder
        self._lock = Lock()

    def begin(self) -> None:
        """Configure logging to the file, for the lifetime of the process."""
        handler = logging.StreamHandler(sys.stderr)
        handler.addFilter(self._before_a_record)
        logging.basicConfig(
            handlers=[handler], level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )

    def rotate(self) -> None:
        """Begin a new file if the current file is too large."""
        with self._lock, contextlib.suppress(OSError):  # e.g. a full disk
            if os.fstat(sys.stderr.fileno()).st_size > _MOST_LOG_BYTES:
                file = open_log(self._device, self._folder)
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(file, stream.fileno())
                os.close(file)

    def _before_a_record(self, _: logging.LogRecord) -> bool:
        self.rotate()
        return True


READY: Final = b"ready"
"""The message of a service that listens; any other message is an error."""

# The code of the service's process, which uses the sys.path of this process. The fork detaches the
# service from the client, so that the service may live longer, and no process has to wait for it. A
# service that hangs before it listens would hold the lock for ever: it dumps its stack to the log,
# and ends itself. The lock file contains the process ID, unless the disk is full.
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
"""Time in which a service that exceeded its time limit can write its log and end itself."""


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
        False if there is a service, or another process starts it.

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
    """Return an error text about the process that holds the device's lock; empty if unknown."""
    with contextlib.suppress(OSError, ValueError):
        lock = _lock(device, folder)
        if lock is None:
            pid = int(folder.file(device, "lock").read_text())
            return (
                f"; process {pid} is the service, or is starting it: end this process if it hangs"
            )
        lock.close()
    return ""


class _Lock:
    """The device's lock, held by this process. Forks close it, because they would hold it too."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close_in_forks(self)

    def close_in_fork(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. A process that inherited it holds the lock. Safe to call twice."""
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
        # Absolute, because the working directory of the process is /.
        paths = [str(Path(path).absolute()) for path in sys.path]
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
            return _read_message(reading, timeouts.start_s + _LATER_S, check_needed)
        finally:
            process.kill()  # the service's parent, which has forked, or failed before the fork
            process.wait()
    finally:
        for descriptor in (output, reading, writing):
            if descriptor >= 0:
                os.close(descriptor)


def _read_message(reading: int, within_s: float, check_needed: Callable[[], None]) -> bytes:
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
            if message == READY:  # a fork of this process may keep the pipe open
                return message
    return message or f"no response within {within_s:g} s".encode()


def _tail(device: str, folder: RuntimeFolder) -> str:
    with contextlib.suppress(OSError):
        text = folder.file(device, "log").read_text(errors="replace").strip()
        return f"it ended with\n{text[-_TAIL:]}" if text else "it ended without a message"
    return "it ended without a message"
