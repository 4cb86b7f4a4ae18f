"""The log of a device service: all that its process says, in a file that does not grow for ever."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from threading import Lock
from typing import Final

from ge_runtime.service.paths import RuntimeFolder, file_name

_MOST_BYTES: Final = 2**20
"""Of a log; then the next one begins, and the one before it is forgotten."""


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

    def look(self) -> None:
        """Begin the next file if this one is long."""
        with self._lock, contextlib.suppress(OSError):  # a full disk is no reason to end
            if os.fstat(sys.stderr.fileno()).st_size > _MOST_BYTES:
                file = open_log(self._device, self._folder)
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(file, stream.fileno())
                os.close(file)

    def _before_a_record(self, _: logging.LogRecord) -> bool:
        self.look()
        return True
