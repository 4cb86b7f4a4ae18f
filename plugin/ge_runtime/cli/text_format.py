"""config.pbtxt as a mapping: protobuf's text format, read without protobuf.

Of Triton's schema this module knows only which of the fields that ge_runtime reads are lists or
maps. All else is as it is written: names of enums as text, numbers, truths, messages as mappings,
a list where a field occurs several times. Whoever reads a field checks what is in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_LISTS: Final = (
    "input",
    "output",
    "batch_input",
    "source_input",
    "target_name",
    "dims",
    "shape",
    "instance_group",
    "gpus",
)
_MAP: Final = "parameters"
"""Each entry is a message of `key` and `value`."""

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?!\w))
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_TRUTHS: Final = {"true": True, "false": False}
_ENDS: Final = {"{": "}", "<": ">"}


class Token(NamedTuple):
    """A word, value or mark, and where it stands."""

    kind: str
    """"text", "number", "word", "mark", or "end" for the end of the text."""
    text: str
    """As it is written; a text with its quotes."""
    line: int
    """Counted from 1."""
    start: int
    end: int
    """The characters it takes, from `start` to before `end`."""


def tokens(text: str) -> list[Token]:
    """All tokens, the end of the text last. Raises ValueError where there is none."""
    found: list[Token] = []
    place, line = 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"line {line}: found {text[place]!r}, expected a field or value")
        kind = str(match.lastgroup)
        if kind != "blank":
            found.append(Token(kind, match[0], line, place, match.end()))
        line += match[0].count("\n")
        place = match.end()
    found.append(Token("end", "", line, place, place))
    return found


def parse(text: str) -> dict[str, object]:
    """The message that `text` writes. Raises ValueError with line, found and expected."""
    reader = _Reader(text)
    message = reader.message(end="")
    reader.take("")
    return message


class _Reader:
    """Goes through the tokens of a text, once."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._next = 0

    def message(self, end: str) -> dict[str, object]:
        """The fields up to the token `end`, which is left."""
        fields: dict[str, list[object]] = {}
        while self._word not in (end, ""):
            kind, name, line, *_ = self._tokens[self._next]
            if kind != "word":
                raise ValueError(f"line {line}: found {name!r}, expected the name of a field")
            self._next += 1
            fields.setdefault(name, []).extend(self._values())
            self._skip(",;")
        return {name: _field(name, values) for name, values in fields.items()}

    def take(self, word: str) -> None:
        """Move on from the token `word`. Raises ValueError if another one is next."""
        if self._word != word:
            raise self._fault(f"'{word}'" if word else "the end")
        self._next += 1

    def _values(self) -> list[object]:
        """What follows the name of a field: one value, or a list of them in brackets."""
        colon = self._skip(":")
        if self._word != "[":
            return [self._value(colon=colon)]
        self.take("[")
        values: list[object] = []
        while self._word != "]":
            values.append(self._value(colon=True))
            if not self._skip(",") and self._word != "]":
                raise self._fault("',' or ']'")
        self.take("]")
        return values

    def _value(self, *, colon: bool) -> object:
        """colon: whether one came before; values other than messages need it."""
        kind, word, *_ = self._tokens[self._next]
        if word in _ENDS:
            self.take(word)
            message = self.message(_ENDS[word])
            self.take(_ENDS[word])
            return message
        if not colon:
            raise self._fault("':' or '{'")
        if kind == "text":
            return self._text()
        if kind == "number":
            self._next += 1
            return _number(word)
        if kind == "word":
            self._next += 1
            return _TRUTHS.get(word, word)
        raise self._fault("a value")

    def _text(self) -> str:
        """One text, of all parts that stand side by side."""
        parts = []
        while self._tokens[self._next].kind == "text":
            parts.append(_ESCAPE.sub(self._unescaped, self._word[1:-1]))
            self._next += 1
        return "".join(parts)

    def _unescaped(self, match: re.Match[str]) -> str:
        if match[1] not in _ESCAPED:
            raise self._fault("a text whose escapes are among \\n \\t \\r \\\" \\' \\\\")
        return _ESCAPED[match[1]]

    def _skip(self, marks: str) -> bool:
        """Move on from one of `marks`, if one is next."""
        found = self._word != "" and self._word in marks
        self._next += found
        return found

    @property
    def _word(self) -> str:
        return self._tokens[self._next].text

    def _fault(self, expected: str) -> ValueError:
        _, word, line, *_ = self._tokens[self._next]
        found = repr(word) if word else "the end"
        return ValueError(f"line {line}: found {found}, expected {expected}")


def _field(name: str, values: list[object]) -> object:
    if name == _MAP:
        entries = [value if isinstance(value, Mapping) else {} for value in values]
        return {str(entry.get("key", "")): entry.get("value", {}) for entry in entries}
    return values if name in _LISTS or len(values) != 1 else values[0]


def _number(word: str) -> int | float:
    if "x" in word.lower():
        return int(word, 16)
    try:
        return int(word)
    except ValueError:
        return float(word)
