"""How a model says that something failed: an error for one request, or an exception."""

from __future__ import annotations

from reference_server.core.errors import Code, ServerError

from .native import MODULE, Native, NativeEnum, as_text, incompatible_constructor


class ErrorCode(NativeEnum):
    """The codes of `TritonError`; what status each becomes is the frontends' affair."""

    __module__ = MODULE
    __qualname__ = "TritonError.__ErrorCode"

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = "__ErrorCode"


class TritonError(Native):
    """Why one request failed. Not an exception: it is put into an InferenceResponse."""

    __slots__ = ("_code", "_message")
    __module__ = MODULE

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str | bytes, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(message, (str, bytes)) or not isinstance(code, ErrorCode):
            raise incompatible_constructor(
                f"TritonError(message: str, code: {MODULE}.TritonError.__ErrorCode"
                " = <__ErrorCode.INTERNAL: 1>)",
                message,
                code,
            )
        self._message = as_text(message)
        self._code = code

    def message(self) -> str:
        """The text that the client is told."""
        return self._message

    def code(self) -> ErrorCode:
        """The code that decides the client's status."""
        return self._code

    def _as_server_error(self) -> ServerError:
        return ServerError(Code[self._code.name], self._message)


class TritonModelException(Exception):
    """What this API raises when it is misused; models may raise it too."""

    __module__ = MODULE
