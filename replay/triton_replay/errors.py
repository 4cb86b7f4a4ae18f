"""What commands fail with: each error has the exit code that scripts see (docs/replay.md)."""

from __future__ import annotations

from typing import ClassVar


class ReplayError(Exception):
    """A failure that is told to the user in one sentence."""

    exit_code: ClassVar[int] = 2


class ServerUnreachable(ReplayError):
    """Nobody listens at the address of a server."""

    exit_code = 3


class CaptureUnreadable(ReplayError):
    """A file is missing, is no capture, or is one of another version."""

    exit_code = 4


class CaptureIncomplete(ReplayError):
    """The recording is not all that was asked for: no room, or the disk was too slow."""

    exit_code = 5
