"""The language of plans of what goes wrong: see `faults`, which carries them out.

`PLACE@N=ACTION`, joined by semicolons. `device_lost@N` is short for `call@N=lost`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

PLACES: Final = ("call", "malloc", "malloc_host", "mem_info", "copy", "execute", "sync", "load")

EXPECTED: Final = (
    "PLACE@N=ACTION, joined by semicolons, e.g. execute@5=507011; PLACE is one of "
    f"{', '.join(PLACES)}, N counts from 1, and ACTION is a return code, lost, slow:SECONDS or "
    "taken:BYTES"
)


class Planned(NamedTuple):
    """What happens at the `number`-th time that `place` is reached."""

    place: str
    number: int
    word: str
    """"code", "lost", "slow" or "taken"."""
    value: float
    """The code, seconds or bytes."""


def read_plan(plan: str) -> list[Planned]:
    """Raises ValueError for what cannot be read."""
    planned = []
    for item in _items(plan):
        read = _read(item)
        if read is None:
            raise ValueError(f"found '{item}', expected {EXPECTED}")
        planned.append(read)
    return planned


def unreadable(plan: str) -> str | None:
    """The first part of it that cannot be read."""
    return next((item for item in _items(plan) if _read(item) is None), None)


def _items(plan: str) -> Iterator[str]:
    return filter(None, map(str.strip, plan.split(";")))


def _read(item: str) -> Planned | None:
    where, _, action = item.partition("=")
    place, _, number = where.partition("@")
    if place == "device_lost" and not action:
        place, action = "call", "lost"
    word, colon, value = action.partition(":")
    if place not in PLACES or not number.isdecimal() or int(number) < 1:
        return None
    if action == "lost":
        return Planned(place, int(number), word, 0)
    if word in ("slow", "taken") and (amount := _amount(value)) is not None:
        return Planned(place, int(number), word, amount)
    if not colon and word.isdecimal() and int(word) >= 1:
        return Planned(place, int(number), "code", int(word))
    return None


def _amount(text: str) -> float | None:
    """A number of at least 0."""
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if amount >= 0 and math.isfinite(amount) else None
