"""`Logger`: lines in the server's log, with the place in the model that wrote them."""

from __future__ import annotations

import logging

from reference_server.backends.python_host.api.native import (
    MODULE,
    NativeEnum,
    NotConstructible,
    as_text,
    incompatible_function,
)

_log = logging.getLogger("reference_server.models")


class LogLevel(NativeEnum):
    """How grave a line is."""

    __module__ = MODULE
    __qualname__ = "Logger.LogLevel"

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}


class Logger(NotConstructible):
    """Functions that write one line each; a line shows the file and line of its caller.

    Lines go to the standard logger `reference_server.models`; verbose ones as debug lines.
    """

    __slots__ = ()
    __module__ = MODULE

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: LogLevel = LogLevel.INFO) -> None:
        """Write `message` at `level`."""
        if not isinstance(message, (str, bytes)) or not isinstance(level, LogLevel):
            raise incompatible_function(
                "log",
                f"(message: str, level: {MODULE}.Logger.LogLevel = <LogLevel.INFO: 0>) -> None",
                message,
                level,
            )
        _log.log(_LEVELS[level], as_text(message), stacklevel=2)  # the model's line, not this one

    @staticmethod
    def log_info(message: str | bytes) -> None:
        """Write what an operator may want to know."""
        _check("log_info", message)
        _log.info(as_text(message), stacklevel=2)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        """Write what an operator should look at."""
        _check("log_warn", message)
        _log.warning(as_text(message), stacklevel=2)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        """Write what failed."""
        _check("log_error", message)
        _log.error(as_text(message), stacklevel=2)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        """Write what only a developer wants to know."""
        _check("log_verbose", message)
        _log.debug(as_text(message), stacklevel=2)


def _check(function: str, message: object) -> None:
    if not isinstance(message, (str, bytes)):
        raise incompatible_function(function, "(message: str) -> None", message)
