"""The text of a config.pbtxt: the positions of its fields, and all of its syntax errors.

Protobuf's parser keeps no positions and stops at the first error. The tokenizer in this module
accepts any text; only Protobuf decides whether a text is valid.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.config import pbtxt
from reference_server.core.errors import FieldPath

#: A placeholder is one token, so that all of a template's placeholders are found.
_TOKEN = re.compile(
    r"""\s+ | \#[^\n]* | (?P<token>
        \$\{[^}\n]*\}? | \$[A-Z]\w+ | "(?:[^"\\\n]|\\.)*"? | '(?:[^'\\\n]|\\.)*'?
        | [A-Za-z_][\w.]* | [-+]?[\d.][\w.+-]* | . )""",
    re.VERBOSE | re.DOTALL,
)
PLACEHOLDER = re.compile(r"\$\{[^}\n]*\}|(?<!\$)\$[A-Z][A-Z0-9_]+")
_NO_VALUE = re.compile(r'Enum type "(?P<enum>[\w.]+)" has no value named (?P<value>\w[\w+-]*)')
#: After these errors, the structure of the remaining text is not clear.
_STRUCTURAL = re.compile(r'Expected (identifier|"[^{"]")')
_WORD = re.compile(r"\w+")
_BYTE_ORDER_MARK = "\ufeff"
_MOST_ERRORS = 50
#: Triton's names of data types, by their names in other software, without `TYPE_`.
_DATA_TYPES = {
    "FLOAT": "FP32",
    "FLOAT16": "FP16",
    "HALF": "FP16",
    "FLOAT32": "FP32",
    "FLOAT64": "FP64",
    "DOUBLE": "FP64",
    "BFLOAT16": "BF16",
    "INT": "INT32",
    "LONG": "INT64",
    "BOOLEAN": "BOOL",
    "BYTES": "STRING",
    "STR": "STRING",
    "TEXT": "STRING",
    "OBJECT": "STRING",
}


class Position(NamedTuple):
    """A line and a column from 1. Line 0 is the whole file, and column 0 the whole line."""

    line: int = 0
    column: int = 0


WHOLE_FILE = Position()


class SyntaxFault(NamedTuple):
    """An error of Protobuf's parser, with the server's text."""

    position: Position
    text: str
    hint: str


class _Element:
    """A field of the text with one value, or a list of such elements.

    A value is a scalar's token, or the fields of a message.
    """

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.value = ""
        self.parts: list[_Element] = []
        self.lists: list[_Element] = []
        #: The offset after the element; None if its message is not closed.
        self.end: int | None = None

    @property
    def key(self) -> str | None:
        """The key of a map's entry."""
        return next((part.value.strip("\"'") for part in self.parts if part.name == "key"), None)

    def around(self, offset: int) -> _Element | None:
        """Return the smallest part that contains an offset."""
        for part in (*self.parts, *self.lists):
            if part.start <= offset and (part.end is None or offset < part.end):
                return part.around(offset) or part
        return None

    def unclosed(self) -> _Element | None:
        """Return the innermost message without a closing bracket."""
        last = self.parts[-1] if self.parts else None
        return last and (last.unclosed() or (last if last.end is None else None))


def _parsed(text: str) -> _Element:
    """Return the elements of a text, which may have errors."""
    root = _Element("", 0)
    # The open messages, each with the list that is currently read in it, or None.
    stack: list[tuple[_Element, _Element | None]] = [(root, None)]
    name, start = "", 0
    for match in _TOKEN.finditer(text):
        token = match["token"]
        if token is None or token in ":,;":
            continue
        here, listed = stack[-1]
        if not name:  # also in a list, each of whose elements has its own position
            start = match.start()
        if token == "[":
            listed = _Element(name, start)
            here.lists.append(listed)
            stack[-1] = (here, listed)
        elif token in "]}>" and listed is not None:
            listed.end = match.end() if token == "]" else match.start()
            stack[-1] = (here, None)
        if token in "}>" and len(stack) > 1:
            here.end = match.end()
            stack.pop()
        if token in "[]}>":
            name = ""
        elif not name and listed is None and token not in "{<":
            name = token
        else:
            element = _Element(listed.name if listed else name, start)
            here.parts.append(element)
            if listed:
                listed.parts.append(element)
            if token in "{<":
                stack.append((element, None))
            else:
                element.value, element.end = token, match.end()
            name = ""
    return root


class ConfigText:
    """The text of one configuration file; empty if the file cannot be read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            self._text = ""
        self._has_mark = self._text.startswith(_BYTE_ORDER_MARK)
        self._text = self._text.replace(_BYTE_ORDER_MARK, " ", self._has_mark)
        self._root = _parsed(self._text)

    def position(self, path: FieldPath) -> Position:
        """Return the position of a field, or of its nearest container if the field is missing."""
        found = self._root
        rest = list(path)
        while rest:
            field = rest.pop(0)
            named = [part for part in found.parts if part.name == field]
            if not named:
                break
            found = named[0]
            keys = [element.key for element in named]
            if rest and any(key is not None for key in keys):
                key = str(rest.pop(0))
                if key not in keys:
                    break
                found = named[keys.index(key)]
            elif rest and isinstance(rest[0], int):
                found = named[min(rest[0], len(named) - 1)]
                del rest[0]
        return Position() if found is self._root else self._at(found.start)

    def read(self) -> tuple[ConfigProto | None, list[SyntaxFault]]:
        """Return the configuration and all syntax errors.

        After an error in one field, the rest is read without the field. The configuration is None
        after an error, unless all errors are misspelled names whose meaning is clear.
        """
        faults: list[SyntaxFault] = []
        if self._has_mark:
            text = f"{self._file} begins with a byte order mark"
            faults.append(SyntaxFault(Position(1, 1), text, "save it as UTF-8 without the mark"))
        names: list[tuple[int, str]] = []
        rest = self._text
        while len(faults) < _MOST_ERRORS:
            config = ConfigProto()
            try:
                text_format.Parse(rest, config)
            except text_format.ParseError as error:
                position = Position(error.GetLine() or 1, error.GetColumn() or 1)
                offset = self._offset(position)
                element = self._root.around(offset)
                unclosed = self._unclosed_before(str(error))
                hint = unclosed or self._hint(str(error), element)
                text = pbtxt.unreadable(self._file, error).message
                blanked, line = (each.split("\n")[position.line - 1] for each in (rest, self._text))
                text = text.replace(f": '{blanked}': ", f": '{line}': ", 1)
                faults.append(SyntaxFault(position, text, hint))
                if element is None or unclosed or _STRUCTURAL.search(text):
                    break
                name = pbtxt.suggested_field(str(error)) or _suggested_value(str(error))
                if name:
                    names.append((offset, name))
                rest = _without(rest, element)
            else:
                return self._guess(names) if len(names) + self._has_mark == len(
                    faults
                ) else None, faults
        return None, faults

    def _guess(self, names: list[tuple[int, str]]) -> ConfigProto | None:
        """Return the configuration with replaced words at these offsets; None if it has errors."""
        text = self._text
        for offset, name in sorted(names, reverse=True):
            text = text[:offset] + _WORD.sub(name, text[offset:], count=1)
        config = ConfigProto()
        try:
            text_format.Parse(text, config)
        except text_format.ParseError:
            return None
        self._root = _parsed(text)
        return config

    def _unclosed_before(self, reason: str) -> str:
        """Return the hint for a message without its closing bracket, or ""."""
        unclosed = self._root.unclosed()
        field = pbtxt.NO_FIELD.search(reason)
        is_next = field is not None and field["field"] in ConfigProto.DESCRIPTOR.fields_by_name
        if unclosed is None or not (is_next or 'Expected "' in reason):
            return ""
        line = self._at(unclosed.start).line
        return f"the message '{unclosed.name}' of line {line} is not closed"

    def _hint(self, reason: str, element: _Element | None) -> str:
        """Return the fix for a syntax error, or ""."""
        if element is None:
            return ""
        placeholder = PLACEHOLDER.search(self._text[element.start : element.end])
        if placeholder:
            return placeholder_hint(placeholder[0])
        value = _suggested_value(reason)
        if value:
            return f"did you mean '{value}'?"
        if element.name == "value" and element.value[:1] in ("'", '"'):
            return f"write `value {{ string_value: {element.value} }}`"
        if element.value and 'Expected "{"' in reason:
            return f"'{element.name}' is a message; write `{element.name} {{ ... }}`"
        return ""

    def _offset(self, position: Position) -> int:
        before = self._text.split("\n")[: position.line - 1]
        return sum(len(line) + 1 for line in before) + position.column - 1

    def _at(self, offset: int) -> Position:
        line_start = self._text.rfind("\n", 0, offset) + 1
        return Position(self._text.count("\n", 0, offset) + 1, offset - line_start + 1)


def placeholder_hint(found: str) -> str:
    """Return the fix for an unfilled template."""
    return f"{found} is a placeholder of a template; fill it in"


def close_name(name: str, known: Iterable[str]) -> str:
    """Return the hint "did you mean ...?" if a known name is close to `name`, or ""."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean '{close[0]}'?" if close else ""


def _suggested_value(reason: str) -> str:
    """Return the value that an unknown value of an enum probably means, or ""."""
    match = _NO_VALUE.search(reason)
    if match is None:
        return ""
    pool = ConfigProto.DESCRIPTOR.file.pool
    values = list(pool.FindEnumTypeByName(match["enum"]).values_by_name)
    name = match["value"].upper()
    ends = [value for value in values if value.endswith(f"_{name}")]
    if match["enum"].endswith(".DataType"):
        bare = name.removeprefix("TYPE_")
        name = f"TYPE_{_DATA_TYPES.get(bare, bare)}"
    return next(iter(ends or difflib.get_close_matches(name, values, 1)), "")


def _without(text: str, element: _Element) -> str:
    """Return a text of equal length without an element, and without its comma in a list."""
    end = len(text) if element.end is None else element.end
    before, after = text[: element.start], text[end:]
    if after.lstrip().startswith(","):
        after = after.replace(",", " ", 1)
    elif before.rstrip().endswith(","):
        before = " ".join(before.rsplit(",", 1))
    return before + re.sub(r"[^\n]", " ", text[element.start : end]) + after
