"""`Logger`: lines in the server's log, with the place in the model that wrote them."""

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
    """How grave a line is."""

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
    """Functions that write one line each; a line shows the file and line of its caller.

    Lines go to the standard logger `reference_server.models`; verbose ones as debug lines.
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
        """Write `message` at `level`; nothing at a level that has no name."""
        text = as_text(message, "message")
        severity = _LEVELS.get(as_instance(level, "level", LogLevel))
        if severity is not None:
            _log.log(severity, text, stacklevel=_CALLER)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        """Write what an operator may want to know."""
        _log.info(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        """Write what an operator should look at."""
        _log.warning(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        """Write what failed."""
        _log.error(as_text(message, "message"), stacklevel=_CALLER)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        """Write what only a developer wants to know."""
        _log.debug(as_text(message, "message"), stacklevel=_CALLER)
