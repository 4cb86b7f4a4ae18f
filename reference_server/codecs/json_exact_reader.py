"""A reader of RapidJSON's dialect: reads byte by byte, and refuses documents like RapidJSON.

`rapid_json` uses it for any document on which `json_fast_reader` gives up.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from reference_server.core.errors import Code, ServerError, internal

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
#: By the id of an object and the name of a repeated member: the object, and the number of its
#: distinct members before the first repetition.
Repeated: TypeAlias = "dict[tuple[int, str], tuple[object, int]]"

#: The deepest nesting that newer Triton releases accept.
DEEPEST = 100


class TooDeep(ServerError):
    """The document is nested too deeply.

    Attributes:
        opened: The open objects, from the innermost one outwards: the members that have been read,
            and the name of the member whose value is open.
    """

    def __init__(self) -> None:
        text = f"JSON nesting depth exceeds maximum allowed limit ({DEEPEST})"
        super().__init__(Code.INVALID_ARG, text)
        self.opened: list[tuple[dict[str, JsonValue], str]] = []


def read(
    document: bytes,
    repeated: Repeated | None = None,
    *,
    iteratively: bool = False,
    deepest: int = DEEPEST,
) -> JsonValue:
    """Return the value of `document`, as `rapid_json.loads` does.

    Args:
        document: The text.
        repeated: Receives the repeated members of objects.
        iteratively: Whether to find empty documents like RapidJSON's iterative parser.
        deepest: The deepest nesting of arrays and objects that is read.

    Raises:
        ServerError: The refusals that `rapid_json.loads` lists.
    """
    return _Reader(document, {} if repeated is None else repeated, iteratively, deepest).read()


def integer(digits: bytes | str) -> int | float:
    """Return an integer within int64 or uint64, else a double."""
    if len(digits) <= 20 and -(2**63) <= (value := int(digits)) < 2**64:
        return value
    return float(digits)


#: The most bytes of one match, which holds the GIL.
_MOST = 1 << 16
_SPACE = re.compile(rb"[ \t\n\r]{0,%d}" % _MOST)
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(rb"\.[0-9]+")
_EXPONENT = re.compile(rb"[eE][+-]?[0-9]+")
_MINUS = re.compile(rb"-")
_POINT = re.compile(rb"\.")
_EXPONENT_MARK = re.compile(rb"[eE][+-]?")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]{0,%d}' % _MOST)
_HEX = re.compile(rb"[0-9A-Fa-f]{4}")
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_ESCAPES |= {itself: itself for itself in (b'"', b"\\", b"/")}


class _Reader:
    """Reads one document in RapidJSON's order, to stop at the same byte."""

    def __init__(
        self, document: bytes, repeated: Repeated, iteratively: bool, deepest: int
    ) -> None:
        self._repeated = repeated
        self._iteratively = iteratively
        self._deepest = deepest
        # RapidJSON ends a document at a NUL.
        self._text = document.partition(b"\0")[0]
        self._at = 0

    def read(self) -> JsonValue:
        # RapidJSON skips each byte of a byte order mark separately.
        for mark in (b"\xef", b"\xbb", b"\xbf"):
            self._at += self._text.startswith(mark, self._at)
        first = self._next()
        if not first or (self._iteratively and first in b"}],:"):
            raise self._refusal("The document is empty.")
        value = self._value(0)
        if self._next():
            raise self._refusal("The document root must not be followed by other values.")
        return value

    def _refusal(self, why: str, at: int | None = None) -> ServerError:
        offset = self._at if at is None else at
        return internal(f"failed to parse the request JSON buffer: {why} at {offset}")

    def _next(self) -> bytes:
        """Skip white space and return the byte that follows; empty at the end."""
        while len(self._take(_SPACE)) == _MOST:
            pass
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[bytes]) -> bytes:
        """Consume a match of `pattern` at the current position and return it; empty without one."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return b""
        self._at = found.end()
        return found[0]

    def _value(self, depth: int) -> JsonValue:
        match self._text[self._at : self._at + 1]:
            case b'"':
                return self._string()
            case b"{" | b"[" if depth == self._deepest:
                raise TooDeep
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
        if not self._consume_word(word):
            raise self._refusal("Invalid value.")

    def _consume_word(self, word: bytes) -> bool:
        """Consume the letters of `word` that match, and return whether all do."""
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
            if name in members:
                self._repeated.setdefault((id(members), name), (members, len(members)))
            try:
                members.setdefault(name, self._value(depth))
            except TooDeep as error:
                error.opened.append((members, name))
                raise
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
            value = integer(whole)
        else:
            value = self._named_number()
            # RapidJSON continues as after a zero: `Inf.5` is 0.5.
            whole = b"-0" if self._text.startswith(b"-", start) else b"0"
        fraction, exponent = self._take(_FRACTION), self._take(_EXPONENT)
        if fraction or exponent:
            value = float(whole + fraction + exponent)
        # Beyond the range of doubles, RapidJSON decides by the number of digits and the exponent.
        # A number that it does not refuse becomes an infinity.
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
        if self._consume_word(b"NaN"):
            return math.nan
        # RapidJSON does not go back: `NaInf` is an infinity, too.
        self._expect(b"Inf")
        if self._text.startswith(b"i", self._at):
            self._expect(b"inity")
        return sign * math.inf

    def _string(self) -> str:
        parts = []
        self._at += 1
        while True:
            while len(part := self._take(_PLAIN)) == _MOST:
                parts.append(part)
            parts.append(part)
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
        """Return the bytes of the escape sequence. Errors have the offset of its backslash."""
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
        # A lone low surrogate is accepted, as the three bytes that UTF-8 would give it.
        return chr(code).encode("utf-8", "surrogatepass")

    def _code_unit(self, start: int) -> int:
        digits = _HEX.match(self._text, self._at + 2)
        if digits is None:
            raise self._refusal("Incorrect hex digit after \\u escape in string.", start)
        self._at = digits.end()
        return int(digits[0], 16)
