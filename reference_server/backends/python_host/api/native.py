"""The model API as C++: argument conversions, base classes, and error classes.

Triton's model API is C++ behind pybind11 2.10. The conversions accept the same values as pybind11
does for a C++ type, and raise TypeError for all other values. Examples: a string may also be bytes,
and an integer may be any object with `__index__` or `__int__` except a float. The texts of the
TypeErrors differ from pybind11's. Each conversion takes the value and the name of the argument,
which the error names. An exception that the value's own code raises is replaced by TypeError where
pybind11 discards it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, SupportsIndex, TypeVar, overload

import numpy as np

from reference_server.core.errors import Code, ServerError

T = TypeVar("T")

#: The values of the C++ integer types.
UINT32 = range(1 << 32)
UINT64 = range(1 << 64)
INT64 = range(-(1 << 63), 1 << 63)


def refusal(argument: str, value: object, expected: str) -> TypeError:
    """Return the error for a value that an argument does not accept."""
    found = repr(value) if type(value) is int else type(value).__name__
    return TypeError(f"argument '{argument}': found {found}; expected {expected}")


def as_text(value: object, argument: str) -> str:
    """Return a str, or bytes decoded as UTF-8, as a plain str.

    Invalid UTF-8 in bytes becomes U+FFFD. A str with lone surrogates is refused.
    """
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TypeError(
                f"argument '{argument}': found a lone surrogate; expected valid Unicode"
            ) from None
        return str.__str__(value)  # a subclass becomes a plain str
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    raise refusal(argument, value, "str or bytes")


def as_integer(value: Any, argument: str, allowed: range) -> int:  # noqa: ANN401
    """Return an integer of the range `allowed`."""
    number = value
    if type(value) is not int:
        if isinstance(value, float) or not _is_number(value):
            raise refusal(argument, value, "int")
        try:
            number = int(value)
        except Exception:  # pybind11 discards any exception of the value's own code
            raise refusal(argument, value, "int") from None
    if number not in allowed:
        expected = f"an integer from {allowed.start} to {allowed.stop - 1}"
        raise refusal(argument, number, expected)
    return int(number)


def as_float(value: Any, argument: str) -> float:  # noqa: ANN401
    """Return a number as a float."""
    if type(value) is float:
        return value
    if type(value) is int or _is_number(value):
        try:
            return float(value)
        except Exception:  # as in `as_integer`
            pass
    raise refusal(argument, value, "float")


def as_bool(value: Any, argument: str) -> bool:  # noqa: ANN401
    """Return the truth value of a bool or of an object with `__bool__`."""
    if value is True or value is False:
        return bool(value)
    if value is not None and not isinstance(value, (str, bytes)) and _has_method(value, "__bool__"):
        try:
            return bool(value)
        except Exception:  # as in `as_integer`
            pass
    raise refusal(argument, value, "bool")


@overload
def as_instance(value: object, argument: str, of: type[T]) -> T: ...


@overload
def as_instance(value: object, argument: str, of: type[T], *, or_none: bool) -> T | None: ...


def as_instance(value: object, argument: str, of: type[T], *, or_none: bool = False) -> T | None:
    """Return an object of the class `of`, or None if `or_none` is set."""
    if isinstance(value, of):
        return value
    if or_none and value is None:
        return None
    raise refusal(argument, value, f"{of.__name__} or None" if or_none else of.__name__)


def as_list(value: Any, argument: str, convert: Callable[[Any], T]) -> list[T]:  # noqa: ANN401
    """Return the converted elements of any object with `__getitem__` and a length.

    Exceptions of the object's `__len__` and `__getitem__` pass through.
    """
    if type(value) is list:
        return [convert(element) for element in value]
    # NumPy's scalars and dtypes have `__getitem__`, but are no sequences.
    if not _has_method(value, "__getitem__") or isinstance(
        value, (dict, str, bytes, np.generic, np.dtype)
    ):
        raise refusal(argument, value, "list")
    return [convert(value[index]) for index in range(len(value))]


def _is_number(value: object) -> bool:
    """Return what CPython's PyNumber_Check returns."""
    if isinstance(value, (str, bytes)):  # NumPy's str_ and bytes_ have the methods
        return False
    return isinstance(value, complex) or any(
        _has_method(value, name) for name in ("__index__", "__int__", "__float__")
    )


def _has_method(value: object, name: str) -> bool:
    """Return whether the value's class has the method. `hasattr` would find a metaclass's too."""
    return any(name in base.__dict__ for base in type(value).__mro__)


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
        self._value = as_integer(value, "value", UINT32)

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
        self._message = as_text(message, "message")
        self._code = as_instance(code, "code", ErrorCode)

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
