"""Errors of commands, each with the exit code that docs/replay.md lists."""

from __future__ import annotations

import errno
from typing import Final

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ReplayError(Exception):
    """A failure that a command reports in one line, with exit code 2."""

    exit_code = 2


class ServerUnreachable(ReplayError):
    """No server listens at an address, or it stopped responding. Exit code 3."""

    exit_code = 3


class CaptureUnreadable(ReplayError):
    """A file is missing, is not a capture, or has another version of the format. Exit code 4."""

    exit_code = 4


class CaptureIncomplete(ReplayError):
    """A capture lacks records: the disk was full or too slow, or it was stopped. Exit code 5."""

    exit_code = 5


class FileUnwritable(ReplayError):
    """A file or folder cannot be written. Exit code 5 if the disk is full, otherwise 4."""

    def __init__(self, name: object, error: OSError) -> None:
        super().__init__(f"{name}: cannot be written: {error.strerror}")
        self.exit_code = 5 if error.errno in _FULL else 4
