"""Arguments as pybind11 reads them: which Python values C++ takes for what, and how it refuses.

A `Kind` is a C++ type of an argument. A `Signature` is a function's whole list: it makes the values
of the C++ side, or raises the TypeError whose text names the types it takes and the values it was
given. All conversions are those of pybind11 2.10 for a function without overloads, in which they
are allowed: a `str` also takes bytes, an `int` whatever has `__index__` or `__int__` but no float.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

MODULE = "c_python_backend_utils"


class Mismatch(Exception):
    """A value that is not of an argument's kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A C++ type: how signatures show it, and what reads a value as one or raises Mismatch."""

    shown: str
    read: Callable[[Any], Any]


def as_text(value: str | bytes | bytearray) -> str:
    """A text as C++ takes it, which reads bytes, too; what is no UTF-8 among them is replaced."""
    return value if type(value) is str else _plain_text(value)


def _plain_text(value: str | bytes | bytearray) -> str:
    # A subclass of str is a plain one once it has been through C++.
    return str.__str__(value) if isinstance(value, str) else value.decode(errors="replace")


def _text(value: object) -> str:
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Mismatch from None
    elif not isinstance(value, (bytes, bytearray)):
        raise Mismatch
    return as_text(value)


def _is_number(value: object) -> bool:
    """PyNumber_Check."""
    if isinstance(value, (str, bytes)):  # NumPy's have the methods, though not as numbers
        return False
    return isinstance(value, complex) or any(
        has_slot(value, slot) for slot in ("__index__", "__int__", "__float__")
    )


def has_slot(value: object, name: str) -> bool:
    """Whether the value's class has the method: not the class of its class, as `hasattr` sees."""
    return any(name in one.__dict__ for one in type(value).__mro__)


def integer(bits: int, *, signed: bool = False) -> Kind:
    """An integer type of so many bits."""
    least = -(1 << (bits - 1)) if signed else 0
    range_ = range(least, least + (1 << bits))

    def read(value: Any) -> int:  # noqa: ANN401 - whatever the model passed
        if type(value) is not int:
            if isinstance(value, float) or not _is_number(value):
                raise Mismatch
            try:
                value = int(value)
            except Exception:  # the value's own code may raise anything, and C++ clears it
                raise Mismatch from None
        if value not in range_:
            raise Mismatch
        return int(value)

    return Kind("int", read)


def _real(value: Any) -> float:  # noqa: ANN401
    if type(value) is float:
        return value
    if type(value) is not int and not _is_number(value):
        raise Mismatch
    try:
        return float(value)
    except Exception:
        raise Mismatch from None


def _truth(value: Any) -> bool:  # noqa: ANN401
    if value is True or value is False:
        return bool(value)
    if value is None or isinstance(value, (str, bytes)) or not has_slot(value, "__bool__"):
        raise Mismatch
    try:
        return bool(value)
    except Exception:
        raise Mismatch from None


def instance(of: type | tuple[type, ...], shown: str, *, or_none: bool = False) -> Kind:
    """An object of a class, which signatures show as `shown`."""

    def read(value: object) -> object:
        if not isinstance(value, of) and not (or_none and value is None):
            raise Mismatch
        return value

    return Kind(shown, read)


def sequence(kind: Kind) -> Kind:
    """A list of what is of `kind`, read from whatever can be indexed and has a length.

    What the length raises goes through to the caller.
    """

    def read(value: Any) -> list[Any]:  # noqa: ANN401
        if type(value) is not list and not is_sequence(value):
            raise Mismatch
        return [kind.read(value[at]) for at in range(len(value))]

    return Kind(f"List[{kind.shown}]", read)


def is_sequence(value: object) -> bool:
    """PySequence_Check, without texts."""
    # NumPy's scalars and dtypes can be indexed, though not as sequences.
    return has_slot(value, "__getitem__") and not isinstance(
        value, (dict, str, bytes, np.generic, np.dtype)
    )


def _something(value: object) -> object:
    if value is None:
        raise Mismatch
    return value


TEXT = Kind("str", _text)
REAL = Kind("float", _real)
TRUTH = Kind("bool", _truth)
OBJECT = Kind("object", lambda value: value)
SOMETHING = Kind("object", _something)
UINT32 = integer(32)
UINT64 = integer(64)
INT64 = integer(64, signed=True)

_REQUIRED = inspect.Parameter.empty
#: The default of an argument that must be given though one before it need not.
REQUIRED: Any = _REQUIRED


class Signature:
    """The arguments of a function, and how its errors show it.

    `function` has their names and defaults; those that go by place alone have none in C++, nor
    here in texts. `names` are shown in place of its own.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *kinds: Kind,
        returns: str = "None",
        names: Sequence[str] = (),
    ) -> None:
        given = list(inspect.signature(function).parameters.values())
        owner, _, name = function.__qualname__.rpartition(".")
        owner = owner.rpartition(">.")[2]
        is_method = bool(given) and given[0].name == "self"
        given = given[1:] if is_method else given
        assert len(given) == len(kinds), function
        #: None for those that go by place alone.
        self._names = [None if one.kind is one.POSITIONAL_ONLY else one.name for one in given]
        self._arguments = [
            (name, one.default, kind.read)
            for name, one, kind in zip(self._names, given, kinds, strict=True)
        ]
        self._is_constructor = name == "__init__"
        shown = [
            (names[at] if names else name or f"arg{at}")
            + f": {kind.shown}"
            + ("" if default is _REQUIRED else f" = {default!r}")
            for at, ((name, default, _), kind) in enumerate(
                zip(self._arguments, kinds, strict=True)
            )
        ]
        if self._is_constructor:
            opening, form = "__init__(): incompatible constructor", f"{MODULE}.{owner}({{}})"
        else:
            opening, form = f"{name}(): incompatible function", f"({{}}) -> {returns}"
            if is_method:
                shown.insert(0, f"self: {MODULE}.{owner}")
        self._text = (
            f"{opening} arguments. The following argument types are supported:\n"
            f"    1. {form.format(', '.join(shown))}\n\nInvoked with: "
        )

    def read(
        self, given: Sequence[Any], named: Mapping[str, Any], itself: tuple[object, ...] = ()
    ) -> list[Any]:
        """The values of all arguments, in their order. Raises TypeError.

        `itself` holds the object whose method it is, if it is one.
        """
        count = len(given)
        # Their number first, as in pybind11: what reads a value may raise something else.
        if count > len(self._arguments) or (
            named and sum(name in named for name in self._names[count:]) != len(named)
        ):
            raise self.refusal(given, named, itself)
        values = []
        try:
            for at, (name, default, read) in enumerate(self._arguments):
                if at < count:
                    values.append(read(given[at]))
                elif name is not None and name in named:
                    values.append(read(named[name]))
                elif default is _REQUIRED:
                    raise Mismatch
                else:
                    values.append(default)
        except Mismatch:
            raise self.refusal(given, named, itself) from None
        return values

    def refusal(
        self, given: Sequence[Any], named: Mapping[str, Any], itself: tuple[object, ...] = ()
    ) -> TypeError:
        """The error for arguments that it does not take."""
        shown = () if self._is_constructor else itself
        parts = [", ".join(map(_shown, (*shown, *given)))] if shown or given else []
        if named:
            parts.append(
                "kwargs: " + ", ".join(f"{name}={_shown(value)}" for name, value in named.items())
            )
        return TypeError(self._text + "; ".join(parts))


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return "<repr raised Error>"


def function(
    *kinds: Kind, returns: str = "None", names: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function be called with the values that C++ would make of its arguments."""

    def decorate(called: Callable[P, R]) -> Callable[P, R]:
        signature = Signature(called, *kinds, returns=returns, names=names)
        bare: Callable[..., R] = called

        @functools.wraps(called)
        def call(*given: object, **named: object) -> R:
            return bare(*signature.read(given, named))

        like: Any = call
        return like  # type: ignore[no-any-return]

    return decorate


def method(*kinds: Kind, returns: str = "None") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same for a method, or a constructor."""

    def decorate(called: Callable[P, R]) -> Callable[P, R]:
        signature = Signature(called, *kinds, returns=returns)
        bare: Callable[..., R] = called
        only = kinds[0].read if len(kinds) == 1 else None

        @functools.wraps(called)
        def call(itself: object, *given: object, **named: object) -> R:
            if only is None or named or len(given) != 1:
                return bare(itself, *signature.read(given, named, (itself,)))
            # The usual call of a metric, which models move with each request.
            try:
                value = only(given[0])
            except Mismatch:
                raise signature.refusal(given, named, (itself,)) from None
            return bare(itself, value)

        like: Any = call
        return like  # type: ignore[no-any-return]

    return decorate


def called_like(
    example: Callable[P, R],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Tell type checkers that a function which takes any arguments is called as `example` is."""
    return lambda called: called
