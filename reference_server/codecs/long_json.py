"""A long JSON document, read in pieces, so that no other thread waits for all of it.

orjson holds the interpreter's lock while it reads, half a second for 64 MiB. Here a document is cut
at commas. Each piece is read by orjson inside the brackets that are open where it begins, and what
it holds is put where it belongs; between two pieces others have their turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import orjson

from reference_server.codecs.rapid_json_reader import JsonValue
from reference_server.core import turns

#: Bytes of a piece: less than a millisecond's work.
PIECE = 1 << 16
_STRING = re.compile(rb'"[^"]*"')  # without escapes
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_CLOSING = {ord("["): b"]", ord("{"): b"}"}
_SPACE = b" \t\n\r"

Container = list[JsonValue] | dict[str, JsonValue]


def loads(
    document: memoryview,
    deepest: int,
    piece: int = PIECE,
    unusual: Callable[[bytes], JsonValue] = orjson.loads,
) -> JsonValue:
    """The value of strict JSON, an array or an object, without equal names; else ValueError.

    ValueError, too, where an object that is cut has an empty name, or brackets nest deeper. A piece
    that is not strict is read by `unusual`, or is not (ValueError).
    """
    reader = _Reader(deepest, unusual)
    for text, is_last in _pieces(document, piece, deepest):
        reader.take(text, is_last=is_last)
        turns.give_way()
    return reader.value()


def _pieces(document: memoryview, size: int, deepest: int) -> Iterator[tuple[bytes, bool]]:
    """What stands between the commas that it is cut at, about `size` bytes; and if it is the last.

    One that has no comma for so long is longer, but for the white space in it. Raises ValueError
    where brackets nest deeper: without commas between them they do.
    """
    gathered: list[bytes] = []
    start, is_in_string = 0, False
    while start + size < len(document):
        window = bytes(document[start : start + size])
        if (len(window) - len(window.rstrip(b"\\"))) % 2:  # what is escaped belongs to it
            window = bytes(document[start : start + size + 1])
        plain = _without_escapes(window)
        comma = _last_comma(plain, is_in_string=is_in_string)
        if comma >= 0:
            yield b"".join((*gathered, window[:comma])), False
            gathered, is_in_string = [], False
            start += comma + 1
            continue
        if not is_in_string:
            brackets = _STRING.sub(b"", plain) if b'"' in plain else plain
            if brackets.count(b"[") + brackets.count(b"{") > deepest:
                raise ValueError("nested too deeply")
        start += len(window)
        is_space = not is_in_string and not window.strip(_SPACE)
        gathered.append(b" " if is_space else window)
        is_in_string ^= bool(plain.count(b'"') % 2)
    gathered.append(bytes(document[start:]))
    yield b"".join(gathered), True


def _last_comma(text: bytes, *, is_in_string: bool) -> int:
    """Where the last comma is outside of strings; -1 without one. The text may begin in one."""
    comma = text.rfind(b",")
    while comma >= 0 and (is_in_string + text.count(b'"', 0, comma)) % 2:
        comma = text.rfind(b",", 0, max(0, text.rfind(b'"', 0, comma)))
    return comma


def _without_escapes(text: bytes) -> bytes:
    """The same length of text, where each quotation mark is one end of a string."""
    if b"\\" in text:
        return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return text


class _Reader:
    """Puts pieces together. `_open` are the arrays and objects that are open, outermost first."""

    def __init__(self, deepest: int, unusual: Callable[[bytes], JsonValue]) -> None:
        self._deepest = deepest
        self._unusual = unusual
        self._root: JsonValue = None
        self._open: list[Container] = []
        self._is_begun = False

    def value(self) -> JsonValue:
        """The document's value, when all pieces were taken."""
        if self._open or not self._is_begun:
            raise ValueError("the document does not end")
        return self._root

    def take(self, text: bytes, *, is_last: bool) -> None:
        """Read the next piece: what stands before a comma, or at the end."""
        brackets = text.translate(None, _NO_BRACKETS)
        if brackets and b'"' in text:
            brackets = _STRING.sub(b"", _without_escapes(text)).translate(None, _NO_BRACKETS)
        closed, opened = self._levels(brackets)
        first, last = text.lstrip(_SPACE)[:1], text.rstrip(_SPACE)[-1:]
        if first in b"]}" and (self._is_begun or not first):
            raise ValueError("nothing stands before the end, or a comma")
        if not is_last and last in b"[{":
            raise ValueError("a comma stands behind an opening bracket")
        if not self._is_begun:
            self._is_begun = True
            self._root = self._read(text, b"", opened)
            if not isinstance(self._root, (list, dict)):
                raise ValueError("neither an array nor an object")
            self._open = _unfinished(self._root, len(opened))
        else:
            self._go_on(text, closed, opened)
        if not is_last and not self._open:
            raise ValueError("a comma behind the end")

    def _levels(self, brackets: bytes) -> tuple[int, bytes]:
        """How many of the open brackets are closed, and which stay open that are opened."""
        if self._deepest < len(self._open) + len(brackets):
            self._check_depth(brackets)
        left = brackets
        while (shorter := left.replace(b"[]", b"").replace(b"{}", b"")) != left:
            left = shorter
        opened = left.lstrip(b"]}")
        if opened.strip(b"[{"):
            raise ValueError("a bracket is closed by one of the other kind")
        return len(left) - len(opened), opened

    def _check_depth(self, brackets: bytes) -> None:
        steps = ord("\\") - np.frombuffer(
            brackets.translate(_SQUARE), np.int8
        )  # +1 for [, -1 for ]
        if len(self._open) + int(np.cumsum(steps, dtype=np.int64).max()) > self._deepest:
            raise ValueError("nested too deeply")

    def _read(self, text: bytes, before: bytes, opened: bytes, after: bytes = b"") -> JsonValue:
        whole = b"".join((before, text, *(_CLOSING[one] for one in reversed(opened)), after))
        value: JsonValue
        try:
            value = orjson.loads(whole)
        except ValueError:
            value = self._unusual(whole)
        if b":" in whole and _names(value) != _colons(whole):
            raise ValueError("equal names")  # of which orjson has the last alone
        return value

    def _go_on(self, text: bytes, closed: int, opened: bytes) -> None:
        """Read a piece that begins in the innermost open bracket and closes so many of them."""
        if closed > len(self._open) or (closed == len(self._open) and opened):
            raise ValueError("more is closed than was opened")
        touched = self._open[-closed - 1 :]
        *outer, _ = touched
        before = b"".join(b"[" if type(one) is list else b'{"":' for one in outer)
        before += b"[" if type(touched[-1]) is list else b"{"
        # Of all that are closed the text itself has the brackets.
        is_end = closed == len(self._open)
        after = b"" if is_end else b"]" if type(touched[0]) is list else b"}"
        part = self._read(text, before, opened, after)
        for container in outer:
            part = _put(container, part, has_child=True)
        _put(touched[-1], part, has_child=False)
        del self._open[len(self._open) - closed :]
        if opened:
            self._open += _unfinished(_last(self._open[-1]), len(opened))


def _colons(text: bytes) -> int:
    """How many names stand in a text."""
    return _STRING.sub(b"", _without_escapes(text)).count(b":")


def _names(value: JsonValue) -> int:
    """How many names there are in a value."""
    names = 0
    pending = [value]
    for part in pending:  # which grows on the way
        if type(part) is dict:
            names += len(part)
            pending.extend(part.values())
        elif type(part) is list:
            pending.extend(one for one in part if type(one) is dict or type(one) is list)
    return names


def _put(container: Container, part: JsonValue, *, has_child: bool) -> JsonValue:
    """Add to a container what a piece has of it; with `has_child` its first is what went on in it.

    Returns that.
    """
    child: JsonValue = None
    if isinstance(container, list):
        more = cast("list[JsonValue]", part)
        if has_child:
            child, *more = more
        container.extend(more)
    else:
        members = cast("dict[str, JsonValue]", part)
        if has_child:
            child = members.pop("")
        if not container.keys().isdisjoint(members):
            raise ValueError("equal names")
        container.update(members)
    return child


def _last(container: Container) -> JsonValue:
    """What stands last in it."""
    return container[-1] if isinstance(container, list) else next(reversed(container.values()))


def _unfinished(value: JsonValue, depth: int) -> list[Container]:
    """`value` and what is the last in it, so many of them; each is a container."""
    found: list[Container] = []
    while len(found) < depth:
        found.append(cast("Container", value))
        if len(found) < depth:
            value = _last(found[-1])
    return found
