"""Fault injection: a plan of faults, by place and count.

A plan has items `PLACE@N=ACTION`, joined by semicolons, see `read_plan`. ACTION happens when PLACE
is reached for the N-th time, counted from now.

Places: `call` (any acl function), `malloc`, `malloc_host`, `mem_info` (after get_mem_info), `copy`
and `execute` (when the task runs), `sync` (any synchronize), `load`. Actions: a return code; `lost`
(the device is lost); `slow:SECONDS`; `hang` (only for `execute`); `taken:BYTES` (other processes
then hold this many bytes). For example `malloc@3=207001;execute@5=507011;mem_info@1=taken:1000000;
device_lost@90`.

An operator that hangs, or is slower than the limit of set_op_execute_time_out, ends at once with
507014, as if the limit had passed. A wait for the operator with a shorter limit returns 507046.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, NamedTuple

from ascend_simulator.codes import Code, OperatorTimeout, Refused


class Faults:
    """The plan and its progress. Safe from any thread."""

    def __init__(
        self, lose: Callable[[], None], take: Callable[[int], None], changed: Callable[[], None]
    ) -> None:
        """Make an empty plan.

        Args:
            lose: Makes the device lost.
            take: Sets the bytes of the device that other processes hold.
            changed: Called after the plan has changed.
        """
        self._lose = lose
        self._take = take
        self._changed = changed
        self._lock = Lock()
        self._reached: Counter[str] = Counter()
        self.operator_limit_s = math.inf
        """The time limit of operators."""
        self._plan: dict[tuple[str, int], Planned] = {}

    def arm(self, plan: str) -> None:
        """Add to the plan; counts begin now. Raises ValueError for an invalid plan."""
        items = read_plan(plan)
        with self._lock:
            for item in items:
                self._plan[item.place, self._reached[item.place] + item.number] = item
        self._changed()

    def clear(self) -> None:
        """Remove all faults from the plan."""
        self._plan.clear()
        self._changed()

    @property
    def is_armed(self) -> bool:
        """True if a fault is left in the plan."""
        return bool(self._plan)

    def strike(self, place: str) -> None:
        """Count that `place` is reached, and perform a planned action, which may raise Refused."""
        with self._lock:
            self._reached[place] += 1
            item = self._plan.pop((place, self._reached[place]), None) if self._plan else None
        if item is not None:
            self._act(place, item.word, item.value)

    def _act(self, place: str, word: str, value: float) -> None:
        if word == "hang" or (
            word == "slow" and place == "execute" and value > self.operator_limit_s
        ):
            raise OperatorTimeout(self.operator_limit_s)
        if word == "slow":
            time.sleep(value)
        elif word == "taken":
            self._take(int(value))
        elif word == "lost":
            self._lose()
            raise Refused(Code.RT_LOST_HEARTBEAT, "the device is lost (injected)")
        else:
            raise Refused(int(value), f"injected at {place}")


PLACES: Final = ("call", "malloc", "malloc_host", "mem_info", "copy", "execute", "sync", "load")

EXPECTED: Final = (
    "PLACE@N=ACTION, joined by semicolons, e.g. execute@5=507011; PLACE is one of "
    f"{', '.join(PLACES)}, N counts from 1, and ACTION is a return code, lost, hang, slow:SECONDS "
    "or taken:BYTES"
)


class Planned(NamedTuple):
    """The fault that happens when `place` is reached for the `number`-th time."""

    place: str
    number: int
    word: str
    """"code", "lost", "hang", "slow" or "taken"."""
    value: float
    """The code, seconds or bytes."""


def read_plan(plan: str) -> list[Planned]:
    """Parse a plan. Raises ValueError if it is invalid."""
    planned = []
    for item in _items(plan):
        read = _read(item)
        if read is None:
            raise ValueError(f"found '{item}', expected {EXPECTED}")
        planned.append(read)
    return planned


def first_invalid(plan: str) -> str | None:
    """Return the first invalid part of a plan; None if it is valid."""
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
    if action == "lost" or (action == "hang" and place == "execute"):
        return Planned(place, int(number), word, 0)
    if word in ("slow", "taken") and (amount := _amount(value)) is not None:
        return Planned(place, int(number), word, amount)
    if not colon and word.isdecimal() and int(word) >= 1:
        return Planned(place, int(number), "code", int(word))
    return None


def _amount(text: str) -> float | None:
    """Parse a number of at least 0; None if the text is something else."""
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if amount >= 0 and math.isfinite(amount) else None
