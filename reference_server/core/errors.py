"""The server's errors: a code and a text for clients, as Triton's TRITONSERVER_Error, and defects.

Which HTTP status or gRPC code a code becomes is decided in the frontends, nowhere else. A defect of
the server's own is logged where it happens, and costs no more than what it broke (`Contained`).
"""

from __future__ import annotations

import enum
import logging
from types import TracebackType

log = logging.getLogger(__name__)


class Code(enum.Enum):
    """Triton's internal error codes; the value is the name printed before a nested text."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


#: Characters of a text that are told; it may quote what a client sent, however long that is.
_LONGEST = 1 << 18


class ServerError(Exception):
    """A failure that a client, an operator or the log is told about, word for word.

    `code` decides the status on each protocol, `message` is the text that is sent.
    """

    def __init__(self, code: Code, message: str) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}... ({len(message)} characters)"
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message

    def described(self) -> str:
        """The text with its code in front, as it stands in start-up tables and reasons."""
        return f"{self.code.value}: {self.message}"


class BackendError(ServerError):
    """A fault that a backend finds in a request it was given.

    The request counts as accepted: it is answered through its sink and counted as failed, where
    a refusal would move nothing.
    """


class NotHere(ServerError):
    """A model asks for what this machine or this server lacks, and another one may have.

    `reference-server check`, which asks whether a repository is right, only warns of it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARG, message)


def invalid_arg(message: str) -> ServerError:
    """The caller's request or configuration is wrong."""
    return ServerError(Code.INVALID_ARG, message)


def internal(message: str) -> ServerError:
    """Something failed on this side, or JSON could not be read (Triton calls that internal too)."""
    return ServerError(Code.INTERNAL, message)


def not_found(message: str) -> ServerError:
    """A name in the request refers to nothing."""
    return ServerError(Code.NOT_FOUND, message)


def unavailable(message: str) -> ServerError:
    """The server, a model or a queue does not take the request now."""
    return ServerError(Code.UNAVAILABLE, message)


def unsupported(message: str) -> ServerError:
    """The request asks for something that this server, or this model, does not do."""
    return ServerError(Code.UNSUPPORTED, message)


class Contained:
    """`with` it, exceptions are logged under `what`, and execution goes on behind the block.

    Not BaseExceptions. To be made once and used by any number of threads.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        log.error("%s", self._what, exc_info=error)
        return True
