"""The server's errors: a code and a text for clients, like Triton's TRITONSERVER_Error.

Only the frontends map codes to HTTP statuses and gRPC codes. Unexpected exceptions are logged where
they occur, so that they affect only one operation (`Contained`).
"""

from __future__ import annotations

import enum
import logging
from types import TracebackType

log = logging.getLogger(__name__)

#: A field in a configuration, such as `("input", 0, "dims")`.
FieldPath = tuple["str | int", ...]


class Code(enum.Enum):
    """Triton's internal error codes; the value is the name that `described` prints."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


#: The longest text that is sent, in characters. Texts can quote requests, which can be very long.
_LONGEST = 1 << 18


class ServerError(Exception):
    """An error that is reported to a client or in the log.

    `code` determines the status of each protocol, `message` is the text. `path` is the faulty field
    of a configuration: names of fields, each followed by an index or a key if it repeats. `hint` is
    the fix. The log and `reference-server check` show it after a dash; clients never get it.
    """

    hint = ""

    def __init__(self, code: Code, message: str, path: FieldPath = ()) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}... ({len(message)} characters)"
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path

    def __str__(self) -> str:
        return self.message

    def described(self) -> str:
        """Return code and text, as in Triton's start-up table and in the repository index."""
        return f"{self.code.value}: {self.message}"

    def cured(self) -> str:
        """Return code, text and hint, for the log."""
        return f"{self.described()} - {self.hint}" if self.hint else self.described()


class BackendError(ServerError):
    """An error that a backend finds in a request.

    The request was accepted before, so its sink gets the error, and it counts as failed. A request
    that is not accepted does not change any counter.
    """


class StringClasses(ServerError):
    """A client requested the classification of an output of strings."""


class LoadDeadlock(ServerError):
    """A model's `initialize` made a call that would wait for the model's own load."""


class NotHere(ServerError):
    """A model requires something that this machine or server lacks, but others may have.

    `reference-server check` reports it as a warning.
    """

    def __init__(self, message: str, *path: str | int, hint: str = "") -> None:
        super().__init__(Code.INVALID_ARG, message, path)
        self.hint = hint


def invalid_arg(message: str, *path: str | int) -> ServerError:
    """Return an INVALID_ARG error: the request or configuration is wrong."""
    return ServerError(Code.INVALID_ARG, message, path)


def internal(message: str, *path: str | int) -> ServerError:
    """Return an INTERNAL error: the server failed, or, as in Triton, JSON is malformed."""
    return ServerError(Code.INTERNAL, message, path)


def not_found(message: str) -> ServerError:
    """Return a NOT_FOUND error: a name in the request is unknown."""
    return ServerError(Code.NOT_FOUND, message)


def unavailable(message: str) -> ServerError:
    """Return an UNAVAILABLE error: the server, model or queue does not accept requests now."""
    return ServerError(Code.UNAVAILABLE, message)


def unsupported(message: str, *path: str | int) -> ServerError:
    """Return an UNSUPPORTED error: the server or model lacks the requested feature."""
    return ServerError(Code.UNSUPPORTED, message, path)


class Contained:
    """A context manager that logs an exception with the text `what` and suppresses it.

    Only instances of Exception are suppressed. Reusable, and thread-safe.
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
