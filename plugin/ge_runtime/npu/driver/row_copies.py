"""Copies within a card between a slot and rows that lie elsewhere, as few as there can be.

Rows that are neighbours at both ends are one copy. What is left of a batch is filled up with its
first rows once more, twice as many with each copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ge_runtime.npu.driver.driver import Address
from ge_runtime.npu.driver.memory import QUEUED_ALIGNMENT


class RowCopy(NamedTuple):
    """Of one row or several."""

    target: Address
    source: Address
    nbytes: int


def can_be_queued(copies: Sequence[RowCopy]) -> bool:
    """Whether a stream can do all of them; else all are done at once, so that they keep order."""
    return not any(
        end % QUEUED_ALIGNMENT for target, source, _ in copies for end in (target, source)
    )


def gathering(places: Sequence[int], row_bytes: int, rows: int, slot: Address) -> list[RowCopy]:
    """To a slot, of so many rows at these places, at least one; `rows` in all."""
    copies = [
        RowCopy(Address(slot + first * row_bytes), Address(places[first]), count * row_bytes)
        for first, count in _neighbours(places, row_bytes)
    ]
    filled = len(places)
    while filled < rows:
        count = min(filled, rows - filled)
        copies.append(RowCopy(Address(slot + filled * row_bytes), slot, count * row_bytes))
        filled += count
    return copies


def scattering(places: Sequence[int], row_bytes: int, slot: Address) -> list[RowCopy]:
    """From a slot, of its first rows to these places."""
    return [
        RowCopy(Address(places[first]), Address(slot + first * row_bytes), count * row_bytes)
        for first, count in _neighbours(places, row_bytes)
    ]


def _neighbours(places: Sequence[int], row_bytes: int) -> Iterator[tuple[int, int]]:
    """The first of each run of rows that lie one behind the other, and how many they are."""
    first = 0
    for row in range(1, len(places) + 1):
        if row == len(places) or places[row] != places[row - 1] + row_bytes:
            yield first, row - first
            first = row
