"""`Logger`, which writes to the server's log with the caller's file and line."""

from __future__ import annotations

import logging
from typing import ClassVar, TypeAlias

from reference_server.backends.python_host.api.arguments import as_instance, as_text
from reference_server.backends.python_host.api.native import (
    MODULE,
    NativeEnum,
    NotConstructible,
)

_log = logging.getLogger("reference_server.models")


class LogLevel(NativeEnum):
    """The severity of a log line."""

    __slots__ = ()
    __module__ = MODULE
    __qualname__ = "Logger.LogLevel"

    INFO: ClassVar[LogLevel]
    WARNING: ClassVar[LogLevel]
    ERROR: ClassVar[LogLevel]
    VERBOSE: ClassVar[LogLevel]


LogLevel._enumerate("INFO", "WARNING", "ERROR", "VERBOSE")

_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}
#: The stack level of the model's line, as seen from a function of `Logger`.
_CALLER = 2


class Logger(NotConstructible):
    """Functions that write one log line each, with the file and line of the caller.

    The lines go to the standard logger `reference_server.models`. Verbose lines have the level
    DEBUG. All functions are thread-safe and raise TypeError if `message` is not a string.
    """

    __slots__ = ()
    __module__ = MODULE

    LogLevel: TypeAlias = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: LogLevel = LogLevel.INFO) -> None:
        """Write `message` at `level`.

        Args:
            message: The text, or its UTF-8 bytes.
            level: `Logger.INFO`, `WARNING`, `ERROR` or `VERBOSE`. A level without a name writes
                nothing.

        Raises:
            TypeError: An argument has another type.
        """
        text = as_text(message, "message")
        severity = _LEVELS.get(as_instance(level, "level", LogLevel))
        if severity is not None:
            _log.log(severity, text, stacklevel=_CALLER)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        """Write an informational message."""
        _log.info(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        """Write a warning."""
        _log.warning(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        """Write an error."""
        _log.error(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        """Write a verbose message."""
        _log.debug(as_text(message, "message"), stacklevel=_CALLER)
