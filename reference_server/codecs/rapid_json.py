"""JSON as Triton's server reads it: what RapidJSON accepts, its values, its errors, its accessors.

Triton parses requests with RapidJSON and its `kParseNanAndInfFlag`. The dialect is a little wider
than JSON, and the texts and byte offsets of its refusals reach the client. Three readers share the
work: orjson reads the ordinary document; the standard library one with a NaN, a name given twice,
or bytes that are not UTF-8; and `_Reader` any other, byte by byte as RapidJSON does.

Two differences are meant. A number that fits a double is the double nearest to it, where RapidJSON
misses by one or two units in the last place for every tenth number of 17 digits, and refuses a few
odd ones such as `0e400`. And nesting is limited, as in newer releases.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
import orjson

from reference_server.core.errors import ServerError, internal, invalid_arg

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

_T = TypeVar("_T")

_DEEPEST = 100


def loads(data: bytes | bytearray | memoryview) -> JsonValue:
    """The value of the JSON document `data`.

    Of equal names in an object the first wins. Integers within int64 or uint64 stay `int`, larger
    ones become `float`. Bytes of a string that are not UTF-8 become lone surrogates, as
    `surrogateescape` decodes them, so `json_numbers.encode_string` writes the same bytes again.

    Raises ServerError INTERNAL `failed to parse the request JSON buffer: <why> at <offset>` for
    what RapidJSON refuses, and INVALID_ARG for nesting deeper than 100.
    """
    document = bytes(data)
    for read in (_read_ordinary, _read_unusual):
        try:
            value = read(document)
        except (ValueError, RecursionError):
            continue
        if _is_shallow(document):
            return value
        break
    return _Reader(document).read()


# ------------------------------------------------------------------------------- the fast readers

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
    names = 0
    pending = [value]
    for part in pending:  # which grows on the way
        if type(part) is dict:
            names += len(part)
            pending.extend(part.values())
        elif type(part) is list and part and type(part[0]) is dict:
            pending.extend(part)
    if document.count(b":") == names or _STRING.sub(b"", document).count(b":") == names:
        return value
    raise ValueError("equal names")


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


def _integer(digits: bytes | str) -> int | float:
    """An integer within int64 or uint64, else a double."""
    if len(digits) <= 20 and -(2**63) <= (value := int(digits)) < 2**64:
        return value
    return float(digits)


def _finite(number: int | float) -> int | float:
    if math.isinf(number):
        raise ValueError("RapidJSON refuses some of the numbers that no double can hold")
    return number


_DECODER = json.JSONDecoder(
    parse_int=lambda digits: _finite(_integer(digits)),
    parse_float=lambda digits: _finite(float(digits)),
    object_pairs_hook=_first_wins,
)


def _is_shallow(document: bytes) -> bool:
    """Whether a well-formed document stays within the limit of nesting."""
    if document.count(b"[") + document.count(b"{") <= _DEEPEST:
        return True
    brackets = _STRING.sub(b"", document).translate(_BRACKETS, _OTHERS)
    steps = ord("\\") - np.frombuffer(brackets, np.int8)  # +1 for [, -1 for ]
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0)) <= _DEEPEST


# ------------------------------------------------------------------------------- the exact reader

_SPACE = re.compile(rb"[ \t\n\r]*")
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(rb"\.[0-9]+")
_EXPONENT = re.compile(rb"[eE][+-]?[0-9]+")
_MINUS = re.compile(rb"-")
_POINT = re.compile(rb"\.")
_EXPONENT_MARK = re.compile(rb"[eE][+-]?")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9A-Fa-f]{4}")
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_ESCAPES |= {itself: itself for itself in (b'"', b"\\", b"/")}


class _Reader:
    """Reads one document in RapidJSON's order, so that it stops at the same byte."""

    def __init__(self, document: bytes) -> None:
        # For RapidJSON a NUL is the end.
        self._text = document.partition(b"\0")[0]
        self._at = 0

    def read(self) -> JsonValue:
        """The document's value."""
        # RapidJSON skips each byte of a byte order mark on its own.
        for mark in (b"\xef", b"\xbb", b"\xbf"):
            self._at += self._text.startswith(mark, self._at)
        if not self._next():
            raise self._refusal("The document is empty.")
        value = self._value(0)
        if self._next():
            raise self._refusal("The document root must not be followed by other values.")
        return value

    def _refusal(self, why: str, at: int | None = None) -> ServerError:
        offset = self._at if at is None else at
        return internal(f"failed to parse the request JSON buffer: {why} at {offset}")

    def _next(self) -> bytes:
        """Skip white space and give the byte that follows; nothing at the end."""
        self._take(_SPACE)
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[bytes]) -> bytes:
        """Step over what matches here, and give it; nothing where nothing matches."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return b""
        self._at = found.end()
        return found[0]

    def _value(self, depth: int) -> JsonValue:
        match self._text[self._at : self._at + 1]:
            case b'"':
                return self._string()
            case b"{" | b"[" if depth == _DEEPEST:
                raise invalid_arg(f"JSON nesting depth exceeds maximum allowed limit ({_DEEPEST})")
            case b"{":
                return self._object(depth + 1)
            case b"[":
                return self._array(depth + 1)
            case b"n":
                self._expect(b"null")
                return None
            case b"t":
                self._expect(b"true")
                return True
            case b"f":
                self._expect(b"false")
                return False
            case _:
                return self._number()

    def _expect(self, word: bytes) -> None:
        if not self._steps_over(word):
            raise self._refusal("Invalid value.")

    def _steps_over(self, word: bytes) -> bool:
        """Step over the letters of `word` as far as they stand here, and tell whether all do."""
        for letter in word:
            if not self._text.startswith(bytes([letter]), self._at):
                return False
            self._at += 1
        return True

    def _object(self, depth: int) -> dict[str, JsonValue]:
        members: dict[str, JsonValue] = {}
        self._at += 1
        if self._next() == b"}":
            self._at += 1
            return members
        while True:
            if self._next() != b'"':
                raise self._refusal("Missing a name for object member.")
            name = self._string()
            if self._next() != b":":
                raise self._refusal("Missing a colon after a name of object member.")
            self._at += 1
            self._next()
            members.setdefault(name, self._value(depth))
            separator = self._next()
            if separator not in (b",", b"}"):
                raise self._refusal("Missing a comma or '}' after an object member.")
            self._at += 1
            if separator == b"}":
                return members

    def _array(self, depth: int) -> list[JsonValue]:
        elements: list[JsonValue] = []
        self._at += 1
        if self._next() == b"]":
            self._at += 1
            return elements
        while True:
            elements.append(self._value(depth))
            separator = self._next()
            if separator not in (b",", b"]"):
                raise self._refusal("Missing a comma or ']' after an array element.")
            self._at += 1
            if separator == b"]":
                return elements
            self._next()

    def _number(self) -> int | float:
        start = self._at
        value: int | float
        if whole := self._take(_INTEGER):
            value = _integer(whole)
        else:
            value = self._named_number()
            # RapidJSON reads on as after a zero: `Inf.5` is 0.5.
            whole = b"-0" if self._text.startswith(b"-", start) else b"0"
        fraction, exponent = self._take(_FRACTION), self._take(_EXPONENT)
        if fraction or exponent:
            value = float(whole + fraction + exponent)
        # Beyond the doubles, RapidJSON goes by the number of digits and by the exponent alone; what
        # it does not refuse becomes an infinity.
        if math.isinf(value) and (
            math.isinf(float(whole)) or (exponent and float(exponent[1:]) > 308 + len(fraction[1:]))
        ):
            raise self._refusal("Number too big to be stored in double.", start)
        if not (fraction or exponent) and self._take(_POINT):
            raise self._refusal("Miss fraction part in number.")
        if not exponent and self._take(_EXPONENT_MARK):
            raise self._refusal("Miss exponent in number.")
        return value

    def _named_number(self) -> float:
        sign = -1.0 if self._take(_MINUS) else 1.0
        if self._steps_over(b"NaN"):
            return math.nan
        # RapidJSON does not step back: `NaInf` is an infinity, too.
        self._expect(b"Inf")
        if self._text.startswith(b"i", self._at):
            self._expect(b"inity")
        return sign * math.inf

    def _string(self) -> str:
        parts = []
        self._at += 1
        while True:
            parts.append(self._take(_PLAIN))
            match self._text[self._at : self._at + 1]:
                case b'"':
                    self._at += 1
                    return b"".join(parts).decode("utf-8", "surrogateescape")
                case b"\\":
                    parts.append(self._escaped())
                case b"":
                    raise self._refusal("Missing a closing quotation mark in string.")
                case _:  # a control character
                    raise self._refusal("Invalid escape character in string.")

    def _escaped(self) -> bytes:
        """The bytes that the escape sequence here stands for; faults count from its backslash."""
        start = self._at
        letter = self._text[start + 1 : start + 2]
        if letter in _ESCAPES:
            self._at += 2
            return _ESCAPES[letter]
        if letter != b"u":
            raise self._refusal("Invalid escape character in string.")
        code = self._code_unit(start)
        if 0xD800 <= code < 0xDC00:
            low = self._code_unit(start) if self._text.startswith(b"\\u", self._at) else 0
            if not 0xDC00 <= low < 0xE000:
                raise self._refusal("The surrogate pair in string is invalid.", start)
            code = 0x10000 + (code - 0xD800 << 10) + (low - 0xDC00)
        # A low surrogate alone is accepted, as the three bytes that UTF-8 would have for it.
        return chr(code).encode("utf-8", "surrogatepass")

    def _code_unit(self, start: int) -> int:
        digits = _HEX.match(self._text, self._at + 2)
        if digits is None:
            raise self._refusal("Incorrect hex digit after \\u escape in string.", start)
        self._at = digits.end()
        return int(digits[0], 16)


# ---------------------------------------------------------------------------------------- access


def member(value: JsonValue, key: str) -> JsonValue:
    """The member `key`; INTERNAL when there is none, or when `value` is no object."""
    if type(value) is dict and key in value:
        return value[key]
    raise internal(f"attempt to access non-existing object member '{key}'")


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


def prefixed(context: str, error: ServerError) -> ServerError:
    """`error` with `<context>: ` before its text, to be raised `from None`."""
    return ServerError(error.code, f"{context}: {error.message}")


def _mismatch(access: str) -> ServerError:
    return internal(f"attempt to access JSON {access}")
