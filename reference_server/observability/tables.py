"""The start-up table of models, drawn as Triton draws it."""

from __future__ import annotations

from collections.abc import Sequence

_HEAD = ("Model", "Version", "Status")
_WIDEST_STATUS = 72


def models(rows: Sequence[tuple[str, str, str]]) -> str:
    """A table of (model, version, status); a status of several lines takes several rows."""
    lines: list[tuple[str, str, str]] = []
    for model, version, status in rows:
        first, *rest = _wrapped(status)
        lines.append((model, version, first))
        lines.extend(("", "", line) for line in rest)
    widths = [max(len(line[column]) for line in (_HEAD, *lines)) for column in range(3)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    drawn = [rule, _row(_HEAD, widths), rule, *(_row(line, widths) for line in lines), rule]
    return "\n".join(drawn)


def _row(cells: tuple[str, str, str], widths: Sequence[int]) -> str:
    shown = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(shown) + " |"


def _wrapped(text: str) -> list[str]:
    return [
        line[start : start + _WIDEST_STATUS]
        for line in text.rstrip("\n").split("\n")
        for start in range(0, max(1, len(line)), _WIDEST_STATUS)
    ]
