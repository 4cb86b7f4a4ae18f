"""The base of the classes that Triton writes in C++, with the errors that pybind11 and they raise.

Their module's name is in texts that clients see:
`found type '<class 'c_python_backend_utils.Tensor'>'`.
"""

from __future__ import annotations

import enum
from typing import NoReturn, SupportsIndex

from reference_server.core.errors import Code, ServerError

MODULE = "c_python_backend_utils"
#: What a RuntimeError says of a value that C++ cannot take.
NO_CAST = (
    "Unable to cast Python instance to C++ type "
    "(#define PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug mode for details)"
)


class Native:
    """An object without attributes of the user's own, that can neither be copied nor pickled."""

    __slots__ = ()
    __module__ = MODULE

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:  # `copy` comes here, too
        raise TypeError(f"cannot pickle '{_qualified(self)}' object")


class NativeEnum(enum.IntEnum):
    """An enumeration whose members equal their numbers but print as members."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class NotConstructible(Native):
    """A class that only the server makes objects of."""

    __slots__ = ()
    __module__ = MODULE

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(f"{_qualified(self)}: No constructor defined!")


def _qualified(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def as_text(value: str | bytes) -> str:
    """A text as C++ takes it, which reads bytes, too; what is no UTF-8 among them is replaced."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def incompatible_function(name: str, signature: str, *arguments: object) -> TypeError:
    """The error for arguments of wrong types; `signature` is the accepted one, in C++ terms."""
    return _incompatible(
        f"{name}(): incompatible function", signature, ", ".join(map(repr, arguments))
    )


def incompatible_constructor(signature: str, *arguments: object, shown: str = "") -> TypeError:
    """The same for a constructor; `signature` begins with the class's name.

    `shown` stands for the arguments where it is not their values alone.
    """
    opening, signature = "__init__(): incompatible constructor", f"{MODULE}.{signature}"
    return _incompatible(opening, signature, shown or ", ".join(map(repr, arguments)))


def _incompatible(opening: str, signature: str, shown: str) -> TypeError:
    # pybind11's text.
    return TypeError(
        f"{opening} arguments. The following argument types are supported:\n"
        f"    1. {signature}\n\n"
        f"Invoked with: {shown}"
    )


def given(arguments: tuple[object, ...], defaults: tuple[object, ...]) -> tuple[object, ...]:
    """Those of `arguments` that a caller must have given; `defaults` are those of the last ones."""
    for default in reversed(defaults):
        if arguments[-1] is not default:
            break
        arguments = arguments[:-1]
    return arguments


class ErrorCode(NativeEnum):
    """The codes of `TritonError`; the frontends know which status each becomes."""

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


ErrorCode.__name__ = "__ErrorCode"  # as it is called in Triton's texts


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


def failed_in_server(action: str, instance_name: str, error: ServerError) -> TritonModelException:
    """What the model of an instance is told of an error that the server found in `action`."""
    return TritonModelException(
        f"{action}: Failed to process the request for model '{instance_name}', message: {error}"
    )
