"""JSON as Triton's server reads it: what RapidJSON accepts, its values, its errors, its accessors.

Triton parses requests with RapidJSON and its `kParseNanAndInfFlag`. This dialect is a little wider
than JSON, and the texts and byte offsets of its refusals reach the client. Two readers share the
work: `json_fast_reader` reads ordinary documents, and `json_exact_reader` reads all other documents
byte by byte, as RapidJSON does.

Two differences from RapidJSON are intended. A number that fits a double becomes the nearest double;
RapidJSON is off by one or two units in the last place for every tenth number of 17 digits, and
refuses a few unusual numbers such as `0e400`. Nesting is limited, as in newer releases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from reference_server.codecs import json_exact_reader, json_fast_reader
from reference_server.codecs.json_exact_reader import DEEPEST, JsonValue, Repeated
from reference_server.core import gil
from reference_server.core.errors import ServerError, internal
from reference_server.core.profiles import V2_51, TritonProfile

_T = TypeVar("_T")

#: The value of a longer document is freed slice by slice.
LONG = 2 * json_fast_reader.PIECE


def loads(
    data: bytes | bytearray | memoryview,
    profile: TritonProfile = V2_51,
    repeated: Repeated | None = None,
    deepest: int = DEEPEST,
) -> JsonValue:
    """Return the value of a JSON document.

    The first of several members with the same name counts. Integers within int64 or uint64 stay
    `int`, larger integers become `float`. Invalid UTF-8 in a string is decoded with
    `surrogateescape`, so `json_writer.write_string` writes the same bytes again.

    Args:
        data: The document.
        profile: The Triton release to imitate.
        repeated: Receives the repeated members of objects.
        deepest: The deepest nesting of arrays and objects.

    Raises:
        ServerError: INTERNAL `failed to parse the request JSON buffer: <why> at <offset>` for what
            RapidJSON refuses; INVALID_ARG for deeper nesting.
    """
    document = bytes(data)
    try:
        return cast("JsonValue", json_fast_reader.read(document, deepest, repeated))
    except json_fast_reader.Unusual:
        pass
    if repeated is not None:
        repeated.clear()  # entries of the fast reader
    return json_exact_reader.read(
        document, repeated, iteratively=profile.newer_request_checks, deepest=deepest
    )


def decode(
    data: memoryview,
    read: Callable[[JsonValue], _T],
    profile: TritonProfile = V2_51,
    repeated: Repeated | None = None,
    deepest: int = DEEPEST,
) -> _T:
    """Return `read(loads(data, profile, repeated, deepest))`.

    For a long document garbage collection is paused, and the value is freed slice by slice, so that
    other threads can run. `read` must not keep a part of the value.
    """
    if len(data) <= LONG:
        return read(loads(data, profile, repeated, deepest))
    value: JsonValue = None
    with gil.without_gc():
        try:
            value = loads(data, profile, repeated, deepest)
            return read(value)
        finally:
            gil.free(value)


# -- accessors


def member(value: JsonValue, key: str) -> JsonValue:
    """Return the member `key`; raises INTERNAL if it is missing, or if `value` is no object."""
    if type(value) is dict and key in value:
        return value[key]
    raise internal(f"attempt to access non-existing object member '{key}'")


def fields(value: JsonValue) -> dict[str, JsonValue]:
    """Return the members of an object, and an empty dict for any other value."""
    return value if type(value) is dict else {}


def members(value: JsonValue) -> dict[str, JsonValue]:
    """Return `value` as an object whose names are iterated; raises INTERNAL for other types."""
    if type(value) is dict:
        return value
    raise internal("attempt to get members for non-object")


def as_object(value: JsonValue) -> dict[str, JsonValue]:
    """Return `value` as an object; raises INTERNAL for other types."""
    if type(value) is dict:
        return value
    raise _mismatch("non-object as object")


def as_array(value: JsonValue) -> list[JsonValue]:
    """Return `value` as an array; raises INTERNAL for other types."""
    if type(value) is list:
        return value
    raise _mismatch("non-array as array")


def as_string(value: JsonValue) -> str:
    """Return `value` as a string; raises INTERNAL for other types."""
    if type(value) is str:
        return value
    raise _mismatch("non-string as string")


def as_bool(value: JsonValue) -> bool:
    """Return `value` as a boolean; raises INTERNAL for other types, such as 0 and 1."""
    if type(value) is bool:
        return value
    raise _mismatch("non-boolean as boolean")


def as_uint64(value: JsonValue) -> int:
    """Return `value` as an integer from 0 to 2**64 - 1; raises INTERNAL for others, such as 1.0."""
    if type(value) is int and value >= 0:
        return value
    raise _mismatch("non-unsigned-integer as unsigned-integer")


def as_int64(value: JsonValue) -> int:
    """Return `value` as an integer within int64; raises INTERNAL for others, such as 1.0."""
    if type(value) is int and value < 2**63:
        return value
    raise _mismatch("non-signed-integer as signed-integer")


def as_double(value: JsonValue) -> float:
    """Return `value`, a double or an integer, as a double; raises INTERNAL for other types."""
    if type(value) is float or type(value) is int:
        return float(value)
    raise _mismatch("non-number as double")


def parse_member(value: JsonValue, key: str, read: Callable[[JsonValue], _T]) -> _T:
    """Return `read(member(value, key))`; errors get the prefix `Unable to parse '<key>': `.

    `read` is one of the accessors: `parse_member(request_input, "shape", as_array)`.
    """
    try:
        return read(member(value, key))
    except ServerError as error:
        raise prefixed(f"Unable to parse '{key}'", error) from None


def c_string(text: str) -> str:
    """Return `text` up to its first NUL, as the real server reads a name in C."""
    return text.partition("\0")[0]


def prefixed(context: str, error: ServerError) -> ServerError:
    """Return `error` with `<context>: ` before its text, to be raised `from None`."""
    return ServerError(error.code, f"{context}: {error.message}")


def _mismatch(access: str) -> ServerError:
    return internal(f"attempt to access JSON {access}")
