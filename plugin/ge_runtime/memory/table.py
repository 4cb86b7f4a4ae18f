"""Aligned text for people: tables of cells, and bytes in units that can be grasped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_UNITS: Final = ("", "KiB", "MiB", "GiB", "TiB")


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """One line per row, cells of a column under each other, two spaces between columns.

    sides: "<" or ">" for each column: the side at which its cells are aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def in_units(nbytes: int) -> str:
    """The bytes in the largest unit of which there is one, e.g. 1.6 GiB; empty below a KiB."""
    power = min((max(nbytes, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{nbytes / 1024**power:.1f} {_UNITS[power]}" if power else ""
