"""Base classes for the model API's classes that Triton writes in C++, and the error classes."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex

from reference_server.backends.python_host.api import arguments
from reference_server.core.errors import Code, ServerError

#: The module of Triton's C++ classes. Clients see it in error texts:
#: `found type '<class 'c_python_backend_utils.Tensor'>'`.
MODULE = "c_python_backend_utils"


class Native:
    """A base class whose objects have fixed attributes and cannot be copied or pickled."""

    __slots__ = ()
    __module__ = MODULE

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:  # `copy` calls this too
        raise TypeError(f"cannot pickle '{_qualified(self)}' object")


class NativeEnum:
    """An enumeration member: not an `int`, but equal to its number and usable as an index.

    A value that is not a member, such as `MemoryType(7)`, has the name `???`.
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
        """Create the members; their values are their positions in `names`."""
        for value, name in enumerate(names):
            cls._names[value] = name
            cls.__members__[name] = cls(value)
            setattr(cls, name, cls.__members__[name])

    @property
    def name(self) -> str:
        """The member's name, or `???`."""
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
    """A class whose objects only the server creates."""

    __slots__ = ()
    __module__ = MODULE

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(f"cannot create '{_qualified(self)}' instances")


def _qualified(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class ErrorCode(NativeEnum):
    """The codes of `TritonError`. The frontends map them to status codes."""

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


ErrorCode.__name__ = "__ErrorCode"  # the name in Triton's texts
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
    """The error of one request, for `InferenceResponse(error=...)`. It is not an exception.

    Args:
        message: The text for the client, or its UTF-8 bytes.
        code: One of the codes of this class, such as `TritonError.INVALID_ARG`.

    Raises:
        TypeError: An argument has another type.
    """

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
        """Return the text that the client receives."""
        return self._message

    def code(self) -> ErrorCode:
        """Return the code, which determines the status that the client receives."""
        return self._code

    def _as_server_error(self) -> ServerError:
        code = Code.__members__.get(self._code.name, Code.UNKNOWN)
        return ServerError(code, self._message)

    @classmethod
    def _of(cls, error: ServerError) -> TritonError:
        return cls(error.message, getattr(ErrorCode, error.code.name))


class TritonModelException(Exception):
    """The exception for misuse of this API. Models may raise it too."""

    __module__ = MODULE


def failed_in_server(action: str, instance_name: str, error: ServerError) -> TritonModelException:
    """Return the exception for a server error in `action`."""
    return TritonModelException(
        f"{action}: Failed to process the request for model '{instance_name}', message: {error}"
    )
