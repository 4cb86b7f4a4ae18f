"""What commands fail with: each error has the exit code that scripts see (docs/replay.md)."""

from __future__ import annotations

import errno
from typing import Final

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ReplayError(Exception):
    """A failure that is told to the user in one sentence."""

    exit_code = 2


class ServerUnreachable(ReplayError):
    """Nobody listens at the address of a server."""

    exit_code = 3


class CaptureUnreadable(ReplayError):
    """A file is missing, is no capture, or is one of another version."""

    exit_code = 4


class CaptureIncomplete(ReplayError):
    """A capture is not all that was asked for: no room, the disk was too slow, it was stopped."""

    exit_code = 5


class FileUnwritable(ReplayError):
    """A file or a folder cannot be made (4), or there is no room for it (5)."""

    def __init__(self, name: object, error: OSError) -> None:
        super().__init__(f"{name}: cannot be written: {error.strerror}")
        self.exit_code = 5 if error.errno in _FULL else 4
