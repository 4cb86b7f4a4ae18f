# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""A fast reader of JSON for the ordinary grammar.

`rapid_json` calls this reader first. If it gives up on a document, `json_exact_reader` reads the
document. orjson reads the numbers, and strings with escapes.

If a C compiler is installed, Cython compiles this file; `json_fast_reader.pxd` has the C types.
Without a C compiler the same file runs interpreted.
"""

from __future__ import annotations

import array
import math

import orjson

from reference_server.codecs.json_exact_reader import Repeated
from reference_server.core import gil

#: Bytes of a document that are read between two pauses: less than a millisecond of work. Other
#: threads can run in a pause.
PIECE = 1 << 16


class Unusual(ValueError):
    """The document is malformed, or has a form that only the exact reader reads."""


def read(document: bytes, deepest: int, repeated: Repeated | None = None) -> object:
    """Return the value of an ordinary JSON document.

    Args:
        document: The text. Invalid UTF-8 in strings is decoded with `surrogateescape`.
        deepest: The deepest nesting of arrays and objects that is read.
        repeated: Receives the repeated members of objects.

    Returns:
        The value. The first of several members with the same name counts. Integers within int64 or
        uint64 are `int`, larger integers are `float`.

    Raises:
        Unusual: The document is malformed, nested too deeply, or has a form that only RapidJSON
            accepts. `NaN`, `Infinity` and `-Infinity` are read.
    """
    reader = _Reader(document, deepest, repeated)
    try:
        return reader.read()
    # IndexError: interpreted code reached the end of the text. ValueError: from orjson, or Unusual.
    except (IndexError, ValueError):
        raise Unusual from None


_OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT, _COMMA, _COLON, _QUOTE, _BACKSLASH = b'[]{},:"\\'
_SPACE, _TAB, _LINE, _RETURN = b" \t\n\r"
_ZERO, _NINE, _MINUS, _PLUS, _POINT, _E, _SMALL_E = b"09-+.Ee"
_N, _I, _SMALL_N, _T, _F = b"NIntf"
_PIECE = PIECE
#: The scalars of a shorter array are read one by one.
_FEW_BYTES = 48
#: An integer of this many digits, and powers of ten up to this exponent, are exact as doubles.
_MOST_EXACT = 15
_TENS = array.array("d", [10**exponent for exponent in range(_MOST_EXACT + 1)])
#: Any integer of this many digits fits 64 bits.
_MOST_DIGITS = 18


class _Reader:
    """Reads one document from front to back. All methods raise ValueError to give up.

    `position` is the index of the next byte. In compiled code, the NUL after the last byte ends
    each scan; in interpreted code, an IndexError does.
    """

    def __init__(self, document: bytes, deepest: int, repeated: Repeated | None) -> None:
        self.text = document
        self.size = len(document)
        self.position = 0
        self.deepest = deepest
        self.repeated = repeated
        #: The position of the next pause.
        self.pause = _PIECE
        #: Scalars, strings and rows before these positions are read one by one.
        self.single = 0
        self.single_strings = 0
        self.single_rows = 0

    def read(self) -> object:
        """Return the value of the document."""
        self.next_byte()
        value = self.read_value(0)
        while self.position < self.size:
            if self.text[self.position] not in (_SPACE, _LINE, _TAB, _RETURN):
                raise Unusual
            self.position += 1
            if self.position > self.pause:
                self.yield_gil()
        return value

    def yield_gil(self) -> None:
        """Let other threads run."""
        self.pause = self.position + _PIECE
        gil.yield_gil()

    def next_byte(self) -> int:
        """Skip white space and return the byte that follows."""
        text = self.text
        position = self.position
        byte = text[position]
        while byte in (_SPACE, _LINE, _TAB, _RETURN):
            position += 1
            if position > self.pause:
                self.position = position
                self.yield_gil()
            byte = text[position]
        self.position = position
        return byte

    def read_value(self, depth: int) -> object:
        """Read the value at `position`, which is inside `depth` arrays and objects."""
        byte = self.text[self.position]
        if byte == _QUOTE:
            return self.read_string()
        if byte in (_OPEN, _OPEN_OBJECT):
            if depth == self.deepest:
                raise Unusual
            self.position += 1
            return self.read_array(depth + 1) if byte == _OPEN else self.read_object(depth + 1)
        if _ZERO <= byte <= _NINE or byte == _MINUS:
            return self.read_number()
        if byte == _T:
            return self.read_word(b"true", True)
        if byte == _F:
            return self.read_word(b"false", False)
        if byte == _SMALL_N:
            return self.read_word(b"null", None)
        if byte == _N:
            return self.read_word(b"NaN", math.nan)
        return self.read_word(b"Infinity", math.inf)

    def read_word(self, word: bytes, value: object) -> object:
        """Consume `word`, which means `value`."""
        if not self.text.startswith(word, self.position):
            raise Unusual
        self.position += len(word)
        return value

    def read_object(self, depth: int) -> dict[str, object]:
        """Read the rest of an object whose opening bracket was read."""
        members: dict[str, object] = {}
        byte = self.next_byte()
        if byte == _CLOSE_OBJECT:
            self.position += 1
            return members
        while byte == _QUOTE:
            name = self.read_string()
            if self.next_byte() != _COLON:
                raise Unusual
            self.position += 1
            self.next_byte()
            value = self.read_value(depth)
            if name not in members:
                members[name] = value
            elif self.repeated is not None:
                self.repeated.setdefault((id(members), name), (members, len(members)))
            byte = self.next_byte()
            self.position += 1
            if byte == _CLOSE_OBJECT:
                return members
            if byte != _COMMA:
                break
            byte = self.next_byte()
            if self.position > self.pause:
                self.yield_gil()
        raise Unusual

    def read_array(self, depth: int) -> list[object]:
        """Read the rest of an array whose opening bracket was read."""
        elements: list[object] = []
        byte = self.next_byte()
        if byte == _CLOSE:
            self.position += 1
            return elements
        while True:
            if byte not in (_QUOTE, _OPEN, _OPEN_OBJECT) and self.position >= self.single:
                elements = self.read_scalars(elements, depth)
            elif byte == _QUOTE and self.position >= self.single_strings:
                elements = self.read_strings(elements)
            elif (
                byte == _OPEN
                and self.position >= self.single_rows
                and depth < self.deepest
                and self.text[self.position + 1] != _OPEN
            ):
                elements = self.read_rows(elements, depth)
            else:
                elements.append(self.read_value(depth))
            byte = self.next_byte()
            self.position += 1
            if byte == _CLOSE:
                return elements
            if byte != _COMMA:
                raise Unusual
            byte = self.next_byte()
            if self.position > self.pause:
                self.yield_gil()

    def read_scalars(self, elements: list[object], depth: int) -> list[object]:
        """Read numbers or words from `position` on and append them to `elements`.

        A whole piece of the text is read at once if orjson can read it, otherwise one element.
        Returns `elements`, or a new list that replaces it.
        """
        start = self.position
        last = start + _PIECE
        end = self.text.find(b"]", start, last)
        if end < 0:
            end = self.text.rfind(b",", start, last)
        if end <= start + _FEW_BYTES:  # such as a shape: one by one is faster
            self.single = end
        else:
            piece = self.text[start:end]
            if b'"' not in piece and b"{" not in piece and b"[" not in piece:
                try:
                    found: list[object] = orjson.loads(b"[%b]" % piece)
                except ValueError:  # such as for NaN
                    pass
                else:
                    self.position = end
                    if not elements:
                        return found
                    elements += found
                    return elements
            self.single = end
        elements.append(self.read_value(depth))
        return elements

    def read_rows(self, elements: list[object], depth: int) -> list[object]:
        """Read arrays of scalars from `position` on and append them to `elements`.

        A whole piece of the text is read at once if orjson can read it, otherwise one array.
        Returns `elements`, or a new list that replaces it.
        """
        start = self.position
        last = start + _PIECE
        end = self.text.find(b"]]", start, last)
        if end < 0:
            end = self.text.rfind(b"],", start, last)
        if end > start:
            end += 1
            piece = self.text[start:end]
            if b'"' not in piece and b"{" not in piece:
                try:
                    found: list[object] = orjson.loads(b"[%b]" % piece)
                except ValueError:  # such as for NaN, or arrays in the arrays
                    pass
                else:
                    if piece.count(b"[") == len(found):
                        self.position = end
                        if not elements:
                            return found
                        elements += found
                        return elements
            self.single_rows = end
        elements.append(self.read_value(depth))
        return elements

    def read_strings(self, elements: list[object]) -> list[object]:
        """Read strings from `position` on and append them to `elements`.

        A whole piece of the text is read at once if orjson can read it, otherwise one string.
        Returns `elements`, or a new list that replaces it.
        """
        start = self.position
        last = start + _PIECE
        # Without escapes, one by one is faster.
        escape = self.text.find(b"\\", start, last)
        self.single_strings = last if escape < 0 else escape + 1
        if escape >= 0:
            end = self.text.find(b'"]', start, last)
            if end < 0:
                end = self.text.rfind(b'",', start, last)
            if escape < end:
                try:
                    found: list[object] = orjson.loads(b"[%b]" % self.text[start : end + 1])
                except ValueError:  # such as for invalid UTF-8
                    found = []
                if set(map(type, found)) == {str}:
                    self.position = end + 1
                    if not elements:
                        return found
                    elements += found
                    return elements
                self.single_strings = end
        elements.append(self.read_string())
        return elements

    def read_number(self) -> object:
        """Read the number at `position`."""
        text = self.text
        start = self.position
        position = start
        if text[position] == _MINUS:
            position += 1
            if text[position] == _I:
                self.position = position
                return self.read_word(b"Infinity", -math.inf)
        first = position
        digits = 0
        byte = text[position]
        while _ZERO <= byte <= _NINE and position - first < _MOST_DIGITS:
            digits = 10 * digits + (byte - _ZERO)
            position += 1
            byte = text[position]
        whole = position
        if byte == _POINT and whole - first <= _MOST_EXACT:
            position += 1
            byte = text[position]
            while _ZERO <= byte <= _NINE and position - first <= _MOST_EXACT:
                digits = 10 * digits + (byte - _ZERO)
                position += 1
                byte = text[position]
        if byte in (_COMMA, _CLOSE, _CLOSE_OBJECT):
            if whole == first or (text[first] == _ZERO and whole > first + 1):
                raise Unusual
            if position == whole:
                self.position = position
                return -digits if first > start else digits
            if position > whole + 1:
                self.position = position
                # The quotient of two exact doubles is rounded correctly.
                number = digits / _TENS[position - whole - 1]
                return -number if first > start else number
        while _ZERO <= byte <= _NINE or byte in (_POINT, _E, _SMALL_E, _PLUS, _MINUS):
            position += 1
            # A document can be a number, which ends with the text.
            byte = text[position] if position < self.size else 0
        self.position = position
        value: object = orjson.loads(text[start:position])
        return value

    def read_string(self) -> str:
        """Read the string whose opening quotation mark is at `position`."""
        text = self.text
        start = self.position + 1
        position = start
        has_escapes = False
        byte = text[position]
        while byte != _QUOTE:
            if byte < _SPACE:
                raise Unusual
            if byte == _BACKSLASH:
                has_escapes = True
                position += 1
                if text[position] == 0:
                    raise Unusual
            position += 1
            byte = text[position]
        self.position = position + 1
        if has_escapes:
            value: str = orjson.loads(text[start - 1 : position + 1])
            return value
        return text[start:position].decode("utf-8", "surrogateescape")
