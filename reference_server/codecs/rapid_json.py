"""JSON as Triton's server reads it: what RapidJSON accepts, its values, its errors, its accessors.

Triton parses requests with RapidJSON and its `kParseNanAndInfFlag`. The dialect is a little wider
than JSON, and the texts and byte offsets of its refusals reach the client. Three readers share the
work: orjson reads the ordinary document, a long one in pieces (long_json); the standard library one
with a NaN, a name given twice, or bytes that are not UTF-8; and rapid_json_reader any other, byte
by byte.

Two differences are meant. A number that fits a double is the double nearest to it, where RapidJSON
misses by one or two units in the last place for every tenth number of 17 digits, and refuses a few
odd ones such as `0e400`. And nesting is limited, as in newer releases.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import orjson

from reference_server.codecs import long_json, rapid_json_reader
from reference_server.codecs.rapid_json_reader import DEEPEST, JsonValue, integer
from reference_server.core.errors import ServerError, internal
from reference_server.core.profiles import V2_51, TritonProfile

_T = TypeVar("_T")


def loads(data: bytes | bytearray | memoryview, profile: TritonProfile = V2_51) -> JsonValue:
    """The value of the JSON document `data`.

    Of equal names in an object the first wins. Integers within int64 or uint64 stay `int`, larger
    ones become `float`. Bytes of a string that are not UTF-8 become lone surrogates, as
    `surrogateescape` decodes them, so `json_data.encode_string` writes the same bytes again.

    Raises ServerError INTERNAL `failed to parse the request JSON buffer: <why> at <offset>` for
    what RapidJSON refuses, and INVALID_ARG for nesting deeper than 100.
    """
    skipped = 0
    if len(data) > LONG:
        try:
            return long_json.loads(memoryview(data), DEEPEST, unusual=_read_unusual)
        except ValueError:
            pass
        data, skipped = _without_space(memoryview(data))
    document = bytes(data)
    # What is long is read byte by byte, for many seconds, but nobody waits for all of it.
    for read in (_read_ordinary, _read_unusual) if len(document) <= LONG else ():
        try:
            value = read(document)
        except (ValueError, RecursionError):
            continue
        if _is_shallow(document):
            return value
        break
    return rapid_json_reader.read(
        document, iteratively=profile.newer_request_checks, skipped=skipped
    )


def _without_space(document: memoryview) -> tuple[memoryview, int]:
    """A document without the white space before it, and how many bytes that is."""
    skipped = 0
    while window := bytes(document[skipped : skipped + long_json.PIECE]):
        rest = window.lstrip(b" \t\n\r")
        skipped += len(window) - len(rest)
        if rest:
            break
    return document[skipped:], skipped


# ------------------------------------------------------------------------------- the fast readers

#: Bytes from which a document is read in pieces.
LONG = 2 * long_json.PIECE
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def _read_ordinary(document: bytes) -> JsonValue:
    """The value of strict JSON without equal names, else ValueError.

    orjson lets the last of equal names win. A document has as many names as colons outside of
    strings; the value has fewer if and only if some were equal. Arrays are looked into only where
    they begin with an object, since tensor data is long and has no names.
    """
    value: JsonValue = orjson.loads(document)
    if _names_are_unique(document, value):
        return value
    raise ValueError("equal names")


def _names_are_unique(document: bytes, value: JsonValue) -> bool:
    names = 0
    pending = [value]
    for part in pending:  # which grows on the way
        if type(part) is dict:
            names += len(part)
            pending.extend(part.values())
        elif type(part) is list and part and type(part[0]) is dict:
            pending.extend(part)
    if document.count(b":") == names:
        return True
    if len(document) > LONG:  # string by string, which others may interrupt
        quoted = sum(found[0].count(b":") for found in _STRING.finditer(document))
        return document.count(b":") - quoted == names
    return _STRING.sub(b"", document).count(b":") == names


def _read_unusual(document: bytes) -> JsonValue:
    """The value of what the standard library reads as RapidJSON does, else ValueError."""
    if _SURROGATE.search(document):
        raise ValueError("the standard library accepts lone surrogates")
    value: JsonValue = _DECODER.decode(document.decode("utf-8", "surrogateescape"))
    return value


def _first_wins(members: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    unique: dict[str, JsonValue] = {}
    for name, value in members:
        unique.setdefault(name, value)
    return unique


def _finite(number: int | float) -> int | float:
    if math.isinf(number):
        raise ValueError("RapidJSON refuses some of the numbers that no double can hold")
    return number


_DECODER = json.JSONDecoder(
    parse_int=lambda digits: _finite(integer(digits)),
    parse_float=lambda digits: _finite(float(digits)),
    object_pairs_hook=_first_wins,
)


def _is_shallow(document: bytes) -> bool:
    """Whether a well-formed document stays within the limit of nesting."""
    if document.count(b"[") + document.count(b"{") <= DEEPEST:
        return True
    brackets = _STRING.sub(b"", document).translate(_BRACKETS, _OTHERS)
    steps = ord("\\") - np.frombuffer(brackets, np.int8)  # +1 for [, -1 for ]
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0)) <= DEEPEST


# ---------------------------------------------------------------------------------------- access


def repeated_names(
    data: bytes | bytearray | memoryview, value: JsonValue
) -> frozenset[tuple[int, str]]:
    """The names that stand more than once in an object of the document `data`, which is `value`.

    Each with its depth: 1 in the outermost object.
    """
    document = bytes(data)
    if _names_are_unique(document, value):
        return frozenset()
    return rapid_json_reader.repeated_names(document)


def member(value: JsonValue, key: str) -> JsonValue:
    """The member `key`; INTERNAL when there is none, or when `value` is no object."""
    if type(value) is dict and key in value:
        return value[key]
    raise internal(f"attempt to access non-existing object member '{key}'")


def fields(value: JsonValue) -> dict[str, JsonValue]:
    """The members of an object; of anything else none, as reading them will say."""
    return value if type(value) is dict else {}


def members(value: JsonValue) -> dict[str, JsonValue]:
    """`value` as an object whose names are walked, else INTERNAL."""
    if type(value) is dict:
        return value
    raise internal("attempt to get members for non-object")


def as_object(value: JsonValue) -> dict[str, JsonValue]:
    """`value` as an object, else INTERNAL."""
    if type(value) is dict:
        return value
    raise _mismatch("non-object as object")


def as_array(value: JsonValue) -> list[JsonValue]:
    """`value` as an array, else INTERNAL."""
    if type(value) is list:
        return value
    raise _mismatch("non-array as array")


def as_string(value: JsonValue) -> str:
    """`value` as a string, else INTERNAL."""
    if type(value) is str:
        return value
    raise _mismatch("non-string as string")


def as_bool(value: JsonValue) -> bool:
    """`value` as true or false, else INTERNAL; 0 and 1 are neither."""
    if type(value) is bool:
        return value
    raise _mismatch("non-boolean as boolean")


def as_uint64(value: JsonValue) -> int:
    """`value` as an integer of 0 ... 2**64 - 1, else INTERNAL; `1.0` is none."""
    if type(value) is int and value >= 0:
        return value
    raise _mismatch("non-unsigned-integer as unsigned-integer")


def as_int64(value: JsonValue) -> int:
    """`value` as an integer of -2**63 ... 2**63 - 1, else INTERNAL; `1.0` is none."""
    if type(value) is int and value < 2**63:
        return value
    raise _mismatch("non-signed-integer as signed-integer")


def as_double(value: JsonValue) -> float:
    """`value` as a double, else INTERNAL; integers are converted, `true` is no number."""
    if type(value) is float or type(value) is int:
        return float(value)
    raise _mismatch("non-number as double")


def parse_member(value: JsonValue, key: str, read: Callable[[JsonValue], _T]) -> _T:
    """`read(member(value, key))`, where a refusal gets the prefix `Unable to parse '<key>': `.

    `read` is one of the accessors: `parse_member(request_input, "shape", as_array)`.
    """
    try:
        return read(member(value, key))
    except ServerError as error:
        raise prefixed(f"Unable to parse '{key}'", error) from None


def c_string(text: str) -> str:
    """`text` as the real server's C reads a name: up to its first NUL."""
    return text.partition("\0")[0]


def prefixed(context: str, error: ServerError) -> ServerError:
    """`error` with `<context>: ` before its text, to be raised `from None`."""
    return ServerError(error.code, f"{context}: {error.message}")


def _mismatch(access: str) -> ServerError:
    return internal(f"attempt to access JSON {access}")
