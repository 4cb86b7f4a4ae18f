"""Edit a config.pbtxt as text, so that comments and formatting are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ge_runtime.cli.config_pbtxt import Token, parse, tokens

_ENDS: Final = {"{": "}", "<": ">", "[": "]"}


@dataclass(frozen=True, slots=True)
class FieldValue:
    """The span of a value, or of an entry of a list."""

    start: int
    end: int
    comma: int | None
    """Position of the comma after an entry of a list."""


@dataclass(frozen=True, slots=True)
class ConfigField:
    """The span of a top-level field."""

    name: str
    start: int
    end: int
    """The end, including a separator."""
    values: Sequence[FieldValue]


def edit_config(
    text: str,
    *,
    texts: Mapping[str, str],
    without: Callable[[str], bool],
    keep: Callable[[str], bool],
    more: Mapping[str, str],
) -> str:
    """Return the configuration with changed fields and parameters.

    Args:
        text: a configuration that `parse` accepts.
        texts: new values of string fields, by field.
        without: returns whether to remove a field.
        keep: returns whether to keep the parameter of a key.
        more: parameters to add at the end.
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
    # From the end, because an edit moves all positions after it.
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
    """Return a string literal of protobuf's text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _fields(text: str) -> Iterator[ConfigField]:
    """Yield the top-level fields of a text that `parse` accepts."""
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
        yield ConfigField(name.text, name.start, end, values)


def _values(words: Sequence[Token], place: int) -> tuple[list[FieldValue], int]:
    """Return the values that start at token `place`, and the index of the token after them."""
    if words[place].text != "[":
        after = _after(words, place)
        return [FieldValue(words[place].start, words[after - 1].end, None)], after
    values = []
    place += 1
    while words[place].text != "]":
        after = _after(words, place)
        comma = words[after].start if words[after].text == "," else None
        values.append(FieldValue(words[place].start, words[after - 1].end, comma))
        place = after + (comma is not None)
    return values, place + 1


def _after(words: Sequence[Token], place: int) -> int:
    """Return the index of the token after the value that starts at `place`."""
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
    """Return the key of an entry of `parameters`, which is given with its braces."""
    entries = parse(f"parameters {entry}")["parameters"]
    return next(iter(entries)) if isinstance(entries, dict) else ""


def _removed(field: ConfigField, kept: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield the spans to remove so that only the kept values remain."""
    if not any(kept):
        yield field.start, field.end
        return
    for value, stays in zip(field.values, kept, strict=True):
        if not stays:
            yield value.start, value.end if value.comma is None else value.comma + 1
    # protobuf refuses a comma after the last entry of a list.
    last = max(index for index, stays in enumerate(kept) if stays)
    comma = field.values[last].comma
    if comma is not None and last + 1 < len(kept):
        yield comma, comma + 1


def _line(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span, extended to whole lines if they contain nothing else."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    if text[first:start].strip() or text[end:last].strip():
        return start, end
    return first, last
