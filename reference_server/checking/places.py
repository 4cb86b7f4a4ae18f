"""Find the place of a fault in its file: the line of the parser's error, or of a quoted word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

#: Line and column at the start of an error of Protobuf's text format.
_POSITION = re.compile(r": (\d+):\d+ : ")
_FIELD = re.compile(r"\b(\w+)\s*[:{\[]")
_WORD = re.compile(r"[\w-](?:[\w.-]*[\w-])?")
_QUOTED = re.compile(r"'([^']+)'")


@dataclass(frozen=True, slots=True)
class Place:
    """A file and a line in it, from 1; line 0 is the file as a whole."""

    file: Path
    line: int = 0


def place_in_text_error(file: Path, text: str) -> Place:
    """Return the place of an error of the text format's parser."""
    match = _POSITION.search(text)
    return Place(file, int(match[1]) if match else 0)


def line_of(file: Path, text: str) -> int:
    """Return the first line of a configuration that `text` is about; 0 if none is found.

    In this order: a quoted value or field, a value in the text, a field whose name is written with
    spaces (`dynamic batching`).
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    bare = [line.partition("#")[0] for line in lines]
    quoted = [re.escape(word) for word in _QUOTED.findall(text)]
    fields = {match for line in bare for match in _FIELD.findall(line)}
    spelled = [field for field in fields if "_" in field and field.replace("_", " ") in text]
    sought = (
        *(f'"{word}"' for word in quoted),
        *(rf"\b{word}\b" for word in quoted),
        # From the end: error texts go from the whole to the part.
        *(f'"{re.escape(word)}"' for word in reversed(_WORD.findall(text))),
        *(rf"\b{field}\b" for field in sorted(spelled, key=len, reverse=True)),
    )
    for pattern in sought:
        for number, line in enumerate(bare, 1):
            if re.search(pattern, line):
                return number
    return 0
