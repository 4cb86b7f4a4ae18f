"""The start-up table of models, drawn as Triton draws it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import TextIO

_HEAD = ("Model", "Version", "Status")
#: How wide a status may be: where nothing limits the table, and however narrow a terminal is.
_WIDEST = 100
_NARROWEST = 30
# What stands around three cells.
_FRAME = len("|  |  |  |")


def models(rows: Sequence[tuple[str, str, str]], width: int | None = None) -> str:
    """A table of (model, version, status); a status that is long takes several rows.

    `width` is that of the terminal, in characters, and None if the table is not for one: words,
    such as paths, are then left whole however long they are.
    """
    names = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(2)]
    widest = _WIDEST if width is None else max(_NARROWEST, width - sum(names) - _FRAME)
    lines: list[tuple[str, str, str]] = []
    for model, version, status in rows:
        first, *rest = _wrapped(status, widest, breaks_words=width is not None)
        lines.append((model, version, first))
        lines.extend(("", "", line) for line in rest)
    widths = [*names, max(len(line[2]) for line in (_HEAD, *lines))]
    rule = "+" + "+".join("-" * (cell + 2) for cell in widths) + "+"
    drawn = [rule, _row(_HEAD, widths), rule, *(_row(line, widths) for line in lines), rule]
    return "\n".join(drawn)


def terminal_width(stream: TextIO) -> int | None:
    """The columns of the terminal that `stream` writes to; None if it writes elsewhere."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # closed, or none of the system's
        return None


def _row(cells: tuple[str, str, str], widths: Sequence[int]) -> str:
    shown = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(shown) + " |"


def _wrapped(text: str, widest: int, *, breaks_words: bool) -> list[str]:
    """The lines of `text`, none of them empty; what goes on is indented."""
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
        lines += textwrap.wrap(
            line,
            widest,
            subsequent_indent=indent,
            break_long_words=breaks_words,
            break_on_hyphens=False,
        )
    return lines or [""]
