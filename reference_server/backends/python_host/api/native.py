"""What the classes share that Triton writes in C++: their module's name and their refusals.

Models and clients meet that name in texts: `found type '<class 'c_python_backend_utils.Tensor'>'`.
"""

from __future__ import annotations

import enum
from typing import NoReturn, SupportsIndex

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

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
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
