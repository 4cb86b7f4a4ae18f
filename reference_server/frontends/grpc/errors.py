"""The gRPC status code of each internal code: the only place where the two meet."""

from __future__ import annotations

import enum

from reference_server.core.errors import Code


class Status(enum.IntEnum):
    """gRPC's status codes that this server answers with, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


STATUS: dict[Code, Status] = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
}


class CallFailed(Exception):
    """A call ends before or beside its method, for a reason of gRPC's own."""

    def __init__(self, status: Status, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
