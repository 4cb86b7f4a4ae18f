"""The runtime folder of a user's device services.

    cpu.sock    the socket of the service of the device `cpu`, while it is running
    cpu.lock    locked by the service while it is running, with its process ID; never removed,
                because that would be a race
    cpu.log     the log of the current or last service; cpu.log.old is that of the one before

Only the user has access to the folder. Files are opened through the folder's descriptor, so that
the folder cannot be replaced by another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final

from ge_runtime.errors import ServiceFault

_NAME: Final = "ge_runtime"
_MOST_LOG_BYTES: Final = 2**20
"""Maximum size of a log, after which a new one begins."""


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
                f"{stat.S_IMODE(found.st_mode):04o}, expected one of user {uid} alone (0700)"
            )
        return cls(path, descriptor)

    def address(self, device: str) -> str:
        """Return the address of a device's socket."""
        # Through the descriptor: the path of a socket is limited to 108 bytes (unix(7)), and the
        # folder may have been replaced.
        return f"/proc/self/fd/{self.descriptor}/{file_name(device)}.sock"

    def file(self, device: str, ending: str) -> Path:
        """Return the path of a file, for messages."""
        return self.path / f"{file_name(device)}.{ending}"

    def devices(self) -> list[str]:
        """Return the file names of devices with a socket, whose service may have been killed."""
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
    """The log file, which is this process's stdout and stderr, to which libraries write as well."""

    def __init__(self, device: str, folder: RuntimeFolder) -> None:
        self._device = device
        self._folder = folder
        self._lock = Lock()

    def begin(self) -> None:
        """Configure logging to the file, for the lifetime of the process."""
        handler = logging.StreamHandler(sys.stderr)
        handler.addFilter(self._before_a_record)
        logging.basicConfig(
            handlers=[handler],
            level=logging.INFO,
            format="%(asctime)s %(levelname)s %(message)s",
        )

    def rotate(self) -> None:
        """Begin a new file if this one is too large."""
        with self._lock, contextlib.suppress(OSError):  # e.g. a full disk
            if os.fstat(sys.stderr.fileno()).st_size > _MOST_LOG_BYTES:
                file = open_log(self._device, self._folder)
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(file, stream.fileno())
                os.close(file)

    def _before_a_record(self, _: logging.LogRecord) -> bool:
        self.rotate()
        return True
