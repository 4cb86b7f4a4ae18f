"""The runtime folder: where the device services of a user are found.

    cpu.sock    where the service of the device `cpu` listens, while there is one
    cpu.lock    held by it for as long as it lives, with its number in it; the file stays, since
                removing it would race
    cpu.log     what the last one said, and cpu.log.old the one before

Nobody else may have a hand in it: the folder belongs to the user alone, and files are reached
through its descriptor, so that nobody can put another folder in its place.
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
"""Of a log; then the next one begins, and the one before it is forgotten."""


def runtime_folder(environment: Mapping[str, str], uid: int) -> Path:
    """The folder for a user: below XDG_RUNTIME_DIR if there is one, else in /tmp."""
    given = environment.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_absolute() and Path(given).is_dir():
        return Path(given) / _NAME
    return Path("/tmp") / f"{_NAME}-{uid}"


class RuntimeFolder:
    """An open runtime folder, until `close` or the end of `with`. Safe from any thread."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path | None = None) -> RuntimeFolder:
        """The folder at `path`, or where this user's is; made if it is not there.

        Raises ServiceFault if it is somebody else's, or open to others.
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
        """What to connect or bind to."""
        # Through the descriptor: a socket's path has 108 bytes (unix(7)), and nobody can put
        # another folder in its place.
        return f"/proc/self/fd/{self.descriptor}/{file_name(device)}.sock"

    def file(self, device: str, ending: str) -> Path:
        """The path of a file, for people."""
        return self.path / f"{file_name(device)}.{ending}"

    def devices(self) -> list[str]:
        """The names of the files of services that listen, or did when they were killed."""
        names = os.listdir(self.descriptor)  # noqa: PTH208 - pathlib knows no descriptors
        return sorted(name.removesuffix(".sock") for name in names if name.endswith(".sock"))

    def close(self) -> None:
        """Safe to call twice."""
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
    """The device's name as a file's: npu:0 is npu-0."""
    return device.replace(":", "-")


def open_log(device: str, folder: RuntimeFolder) -> int:
    """The descriptor of a new log, to append to; the last one is kept as .old. Raises OSError."""
    log = f"{file_name(device)}.log"
    with contextlib.suppress(FileNotFoundError):
        os.rename(log, f"{log}.old", src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(log, flags, 0o600, dir_fd=folder.descriptor)


class LogFile:
    """The log that is this process's stdout and stderr: libraries write there, too."""

    def __init__(self, device: str, folder: RuntimeFolder) -> None:
        self._device = device
        self._folder = folder
        self._lock = Lock()

    def begin(self) -> None:
        """Log there from now on, as long as the process lives."""
        handler = logging.StreamHandler(sys.stderr)
        handler.addFilter(self._before_a_record)
        logging.basicConfig(
            handlers=[handler],
            level=logging.INFO,
            format="%(asctime)s %(levelname)s %(message)s",
        )

    def rotate(self) -> None:
        """Begin the next file if this one is long."""
        with self._lock, contextlib.suppress(OSError):  # a full disk is no reason to end
            if os.fstat(sys.stderr.fileno()).st_size > _MOST_LOG_BYTES:
                file = open_log(self._device, self._folder)
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(file, stream.fileno())
                os.close(file)

    def _before_a_record(self, _: logging.LogRecord) -> bool:
        self.rotate()
        return True
