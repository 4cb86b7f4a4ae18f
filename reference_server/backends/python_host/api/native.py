"""Base classes for the model API's classes that Triton writes in C++, and the error classes."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex

from reference_server.backends.python_host.api import arguments
from reference_server.core.errors import Code, ServerError

#: The module of Triton's C++ classes. Clients see it in error texts:
#: `found type '<class 'c_python_backend_utils.Tensor'>'`.
MODULE = "c_python_backend_utils"


class Native:
    """An object without attributes of the user's own, that can neither be copied nor pickled."""

    __slots__ = ()
    __module__ = MODULE

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:  # `copy` comes here, too
        raise TypeError(f"cannot pickle '{_qualified(self)}' object")


class NativeEnum:
    """A number with a name: no `int`, but equal to its number, and of use wherever C++ takes one.

    Others than the members, such as `MemoryType(7)`, are called `???`.
    """

    __slots__ = ("_value",)
    __module__ = MODULE

    __members__: ClassVar[dict[str, NativeEnum]] = {}
    _names: ClassVar[dict[int, str]] = {}

    def __init__(self, value: int) -> None:
        self._value = arguments.as_integer(value, "value", arguments.UINT32)

    def __init_subclass__(cls) -> None:
        cls.__members__, cls._names = {}, {}

    @classmethod
    def _enumerate(cls, *names: str) -> None:
        """Make the members, whose values are their places."""
        for value, name in enumerate(names):
            cls._names[value] = name
            cls.__members__[name] = cls(value)
            setattr(cls, name, cls.__members__[name])

    @property
    def name(self) -> str:
        """The member's name."""
        return self._names.get(self._value, "???")

    @property
    def value(self) -> int:
        """The member's number."""
        return self._value

    def __int__(self) -> int:
        return self._value

    def __index__(self) -> int:
        return self._value

    def __hash__(self) -> int:
        return self._value

    def __eq__(self, other: object) -> bool:
        return bool(self._value == (other._value if isinstance(other, NativeEnum) else other))

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self._value,)

    def __repr__(self) -> str:
        return f"<{self}: {self._value}>"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class NotConstructible(Native):
    """A class that only the server makes objects of."""

    __slots__ = ()
    __module__ = MODULE

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(f"cannot create '{_qualified(self)}' instances")


def _qualified(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class ErrorCode(NativeEnum):
    """The codes of `TritonError`; the frontends know which status each becomes."""

    __slots__ = ()
    __module__ = MODULE
    __qualname__ = "TritonError.__ErrorCode"

    UNKNOWN: ClassVar[ErrorCode]
    INTERNAL: ClassVar[ErrorCode]
    NOT_FOUND: ClassVar[ErrorCode]
    INVALID_ARG: ClassVar[ErrorCode]
    UNAVAILABLE: ClassVar[ErrorCode]
    UNSUPPORTED: ClassVar[ErrorCode]
    ALREADY_EXISTS: ClassVar[ErrorCode]
    CANCELLED: ClassVar[ErrorCode]


ErrorCode.__name__ = "__ErrorCode"  # as it is called in Triton's texts
ErrorCode._enumerate(
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)


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
        self._message = arguments.as_text(message, "message")
        self._code = arguments.as_instance(code, "code", ErrorCode)

    def message(self) -> str:
        """The text that the client is told."""
        return self._message

    def code(self) -> ErrorCode:
        """The code that decides the client's status."""
        return self._code

    def _as_server_error(self) -> ServerError:
        code = Code.__members__.get(self._code.name, Code.UNKNOWN)
        return ServerError(code, self._message)

    @classmethod
    def _of(cls, error: ServerError) -> TritonError:
        return cls(error.message, getattr(ErrorCode, error.code.name))


class TritonModelException(Exception):
    """What this API raises when it is misused; models may raise it too."""

    __module__ = MODULE


def failed_in_server(action: str, instance_name: str, error: ServerError) -> TritonModelException:
    """What the model of an instance is told of an error that the server found in `action`."""
    return TritonModelException(
        f"{action}: Failed to process the request for model '{instance_name}', message: {error}"
    )
