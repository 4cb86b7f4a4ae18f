"""Conversion of the arguments of the model API.

Triton's model API is C++ behind pybind11 2.10. The functions here accept the same values as
pybind11 does for a C++ type, and raise TypeError for all others. Examples: a string may also be
bytes, and an integer may be any object with `__index__` or `__int__` except a float. The texts of
the TypeErrors are not pybind11's.

Each function takes the value and the name of the argument, which the error names. An exception
that the value's own code raises is replaced by TypeError where pybind11 discards it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np

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
    """Return whether the value's class has the method; `hasattr` also finds a metaclass's."""
    return any(name in base.__dict__ for base in type(value).__mro__)
