"""Edits of a config.pbtxt as text: all that is not edited stays as it was, comments too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.text_format import Token, parse, tokens

_ENDS: Final = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a field, or an entry of its list."""

    start: int
    end: int
    comma: int | None
    """Where the comma after it stands, in a list."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the message itself, not of messages within it."""

    name: str
    start: int
    end: int
    """After the separator that follows, if one does."""
    values: Sequence[Value]


def edited(
    text: str,
    *,
    texts: Mapping[str, str],
    without: Callable[[str], bool],
    keep: Callable[[str], bool],
    more: Mapping[str, str],
) -> str:
    """The configuration with other fields and parameters.

    texts: field that is a text: its new one. without: whether a field goes. keep: whether the
    parameter of this key stays. more: parameters that are added at the end, as texts.
    """
    edits: list[tuple[int, int, str]] = []
    for field in _fields(text):
        if field.name in texts:
            value = field.values[0]
            edits.append((value.start, value.end, quoted(texts[field.name])))
        elif without(field.name):
            edits.append((*_line(text, field.start, field.end), ""))
        elif field.name == "parameters":
            kept = [keep(_key(text[each.start : each.end])) for each in field.values]
            edits += [(*_line(text, *span), "") for span in _removed(field, kept)]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    if more and not text.endswith("\n"):
        text += "\n"
    lines = (
        f"parameters {{ key: {quoted(key)} value {{ string_value: {quoted(value)} }} }}\n"
        for key, value in more.items()
    )
    return text + "".join(lines)


def quoted(text: str) -> str:
    """The text as a configuration writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _fields(text: str) -> Iterator[Field]:
    """The fields of the message, in order. The text must be one that `parse` reads."""
    words = tokens(text)
    place = 0
    while words[place].kind != "end":
        name = words[place]
        place += 1
        if words[place].text == ":":
            place += 1
        values, place = _values(words, place)
        end = words[place - 1].end
        if words[place].text in (",", ";"):
            end = words[place].end
            place += 1
        yield Field(name.text, name.start, end, values)


def _values(words: Sequence[Token], place: int) -> tuple[list[Value], int]:
    """The values that begin at the token `place`, and the place after them."""
    if words[place].text != "[":
        after = _after(words, place)
        return [Value(words[place].start, words[after - 1].end, None)], after
    values = []
    place += 1
    while words[place].text != "]":
        after = _after(words, place)
        comma = words[after].start if words[after].text == "," else None
        values.append(Value(words[place].start, words[after - 1].end, comma))
        place = after + (comma is not None)
    return values, place + 1


def _after(words: Sequence[Token], place: int) -> int:
    """The place after the one value that begins at `place`."""
    if words[place].text in _ENDS:
        depth = 0
        while True:
            depth += words[place].text in _ENDS
            depth -= words[place].text in _ENDS.values()
            place += 1
            if depth == 0:
                return place
    if words[place].kind != "text":
        return place + 1
    while words[place].kind == "text":
        place += 1
    return place


def _key(entry: str) -> str:
    """The key of one entry of `parameters`, written as a message."""
    key = parse(entry[1:-1]).get("key", "")
    return key if isinstance(key, str) else ""


def _removed(field: Field, kept: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """What goes of the field's text, if only some of its values are kept."""
    if not any(kept):
        yield field.start, field.end
        return
    for value, stays in zip(field.values, kept, strict=True):
        if not stays:
            yield value.start, value.end if value.comma is None else value.comma + 1
    # Protobuf takes no comma after the last entry of a list.
    last = max(index for index, stays in enumerate(kept) if stays)
    comma = field.values[last].comma
    if comma is not None and last + 1 < len(kept):
        yield comma, comma + 1


def _line(text: str, start: int, end: int) -> tuple[int, int]:
    """The same characters; with the line around them, if nothing else stands in it."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    if text[first:start].strip() or text[end:last].strip():
        return start, end
    return first, last
