"""The call shapes of pyACL: decorators that turn a typed Python function into one of `acl`.

The decorated function receives checked arguments, returns its values, and raises `Refused`. The
exported function takes positional arguments only, converts them as the binding does (sizes and
addresses are masked, not checked), and returns values followed by a return code. It raises only
TypeError, ValueError and, in strict mode, SimulatorViolation, unless the function's docstring names
other exceptions.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from time import perf_counter_ns
from typing import Any, Final, Protocol, SupportsIndex, TypeAlias

from ascend_simulator import process
from ascend_simulator.codes import ACL_SUCCESS, Code, Refused
from ascend_simulator.violations import HERE, declare, violate

__all__ = [
    "I32",
    "LIST",
    "STR",
    "U32",
    "U64",
    "Refused",
    "bare",
    "batch",
    "dictionary",
    "echo",
    "listing",
    "pair",
    "status",
    "triple",
    "value",
]

NOT_INITIALISED = declare(
    "process.not-initialised",
    "acl.init() must be called before every other function, and acl.finalize() after.",
)
FORKED = declare("process.forked", "Do not use acl in a fork of a process that called acl.init().")

_EXECUTIONS: Final = ("mdl.execute", "mdl.execute_async", "mdl.execute_v2")

_OF_THE_THREAD: Final = ("rt.get_context", "rt.set_context")
"""Calls that concern only the calling thread; they work even if the device is lost."""

Converter: TypeAlias = Callable[[Any], Any]
Function: TypeAlias = Callable[..., Any]
Exported: TypeAlias = Callable[..., Any]


class Shape(Protocol):
    """A decorator for `acl.<name>`, with one converter for each argument.

    Args:
        failed: the value returned after `Refused`.
        optional: the number of trailing arguments that may be omitted.
        anytime: allowed before acl.init() and after the device is lost.
        lost: the code after the device is lost.
        releases_gil: on a device, other Python threads run during the call.
    """

    def __call__(
        self,
        name: str,
        *converters: Converter,
        failed: object = 0,
        optional: int = 0,
        anytime: bool = False,
        lost: int = Code.RT_DRV_INTERNAL_ERROR,
        releases_gil: bool = False,
    ) -> Callable[[Function], Exported]:
        """Return the decorator."""


_U64_MASK: Final = (1 << 64) - 1
_U32_MASK: Final = (1 << 32) - 1


def U64(given: object) -> int:
    """Convert an int to unsigned long, masked.

    Raises TypeError for other types, including NumPy's integers.
    """
    if not isinstance(given, int):
        raise TypeError(f"an integer is required (found {type(given).__name__})")
    return given & _U64_MASK


def LIST(given: object) -> list[int]:
    """Convert a list to unsigned longs. Raises TypeError for other types, tuples included."""
    if not isinstance(given, list):
        raise TypeError(f"a list is required (found {type(given).__name__})")
    return [U64(each) for each in given]


def U32(given: SupportsIndex) -> int:
    """Convert an object with __index__ to unsigned int, masked. Raises TypeError without it."""
    return index(given) & _U32_MASK


def I32(given: SupportsIndex) -> int:
    """Convert an object with __index__ to int.

    Raises TypeError for other objects, and beyond 32 bits, like pyACL.
    """
    number = index(given)
    if not -(1 << 31) <= number < 1 << 31:
        raise TypeError("signed integer is out of range for a C int")
    return number


def STR(given: object) -> str:
    """Convert a str to const char *.

    Raises TypeError for other objects, and for embedded nulls, like pyACL.
    """
    if not isinstance(given, str):
        raise TypeError(f"a str is required (found {type(given).__name__})")
    if "\0" in given:
        raise TypeError("embedded null character")
    return given


EXPORTED: Final[dict[str, Exported]] = {}
"""The functions of all modules imported so far, by name in `acl`, e.g. "rt.malloc" or "init"."""

Pack: TypeAlias = Callable[[list[Any], Any], Any]
"""Returns the result for the caller, from the arguments and the value or code."""


def _shape(succeed: Pack, refuse: Callable[[list[Any], int, Any], Any]) -> Shape:
    """Make a call shape. `refuse` returns the result for arguments, code and failed value."""

    def shape(
        name: str,
        *converters: Converter,
        failed: object = 0,
        optional: int = 0,
        anytime: bool = False,
        lost: int = Code.RT_DRV_INTERNAL_ERROR,
        releases_gil: bool = False,
    ) -> Callable[[Function], Exported]:
        return _export(
            name,
            converters,
            succeed,
            lambda arguments, code: refuse(arguments, code, failed),
            least=len(converters) - optional,
            anytime=anytime,
            lost=lost,
            releases_gil=releases_gil,
        )

    return shape


def _export(
    name: str,
    converters: tuple[Converter, ...],
    succeed: Pack,
    fail: Pack,
    *,
    least: int,
    anytime: bool,
    lost: int,
    releases_gil: bool,
) -> Callable[[Function], Exported]:
    most = len(converters)
    full_name = f"acl.{name}"

    def decorate(function: Function) -> Exported:
        def exported(*given: object) -> object:
            if not most:
                given = ()  # the binding ignores the arguments of such calls
            if not least <= len(given) <= most:
                raise TypeError(f"{full_name}: found {len(given)} argument(s), expected {most}")
            arguments = [convert(one) for convert, one in zip(converters, given, strict=False)]
            now = process.current()
            HERE.call = full_name
            begin = perf_counter_ns()
            try:
                if not (anytime or now.all_clear):  # nearly every call only tests this flag
                    _check_state(now, name, lost)
                return succeed(arguments, function(*arguments))
            except Refused as refused:
                now.set_error(refused.text)
                return fail(arguments, refused.code)
            finally:
                now.counters.count(name, 0 if releases_gil else perf_counter_ns() - begin)

        exported.__name__ = exported.__qualname__ = name.rpartition(".")[2]
        exported.__doc__ = function.__doc__
        EXPORTED[name] = exported
        return exported

    return decorate


status: Final = _shape(lambda _, __: ACL_SUCCESS, lambda _, code, __: code)
"""`ret`. The decorated function returns None."""

value: Final = _shape(lambda _, got: (got, ACL_SUCCESS), lambda _, code, failed: (failed, code))
"""`(value, ret)`; `(failed, ret)` after a refusal."""

pair: Final = _shape(lambda _, got: (*got, ACL_SUCCESS), lambda _, code, __: (0, 0, code))
"""`(a, b, ret)`; `(0, 0, ret)` after a refusal. The decorated function returns a pair."""

triple: Final = _shape(lambda _, got: (*got, ACL_SUCCESS), lambda _, code, __: (0, 0, 0, code))
"""`(a, b, c, ret)`; `(0, 0, 0, ret)` after a refusal. The decorated function returns a triple."""

echo: Final = _shape(
    lambda given, _: (given[0], ACL_SUCCESS), lambda given, code, _: (given[0], code)
)
"""`(first argument, ret)`. The decorated function returns None."""

batch: Final = _shape(
    lambda given, _: (given[3], ACL_SUCCESS), lambda given, code, _: (given[3], code)
)
"""`(fourth argument, ret)`, for VPC's batches. The decorated function returns None."""

dictionary: Final = _shape(
    lambda _, got: (got, ACL_SUCCESS), lambda _, code, failed: (failed or {}, code)
)
"""`(dict, ret)`; `({}, ret)` after a refusal, or `(failed, ret)`."""

listing: Final = _shape(lambda _, got: (got, ACL_SUCCESS), lambda _, code, __: (None, code))
"""`(list, ret)`; `(None, ret)` after a refusal."""

bare: Final = _shape(lambda _, got: got, lambda _, __, failed: failed)
"""`value` without a code; `failed` after a refusal."""


def _check_state(now: process.Process, name: str, lost: int) -> None:
    if now.forked:
        violate(FORKED, f"acl.{name}: called in a child of the process that called acl.init()")
        raise Refused(Code.RT_DRV_INTERNAL_ERROR, f"acl.{name}: called after a fork")
    if now.init_count == 0 and name not in ("init", "finalize", "finalize_reference"):
        violate(NOT_INITIALISED, f"acl.{name}: found no earlier acl.init()")
        code = Code.GE_EXEC_NOT_INIT if name in _EXECUTIONS else Code.UNINITIALIZE
        raise Refused(code, f"acl.{name}: acl.init() was not called")
    if name in _OF_THE_THREAD:
        return
    if now.lost:
        raise Refused(lost, f"acl.{name}: the device is lost")
    now.faults.strike("call")
    now.update_all_clear()  # the fault plan may be empty now
