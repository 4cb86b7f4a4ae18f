"""What goes wrong on purpose: a plan of faults by place and count.

A plan is `PLACE@N=ACTION` joined by semicolons: at the N-th time from now that PLACE is reached,
ACTION happens. `device_lost@N` is short for `call@N=lost`.

Places: `call` (any acl function), `malloc`, `malloc_host`, `mem_info` (after get_mem_info), `copy`
and `execute` (when the task runs), `sync` (any synchronize), `load`. Actions: a return code;
`lost` (the device is gone); `slow:SECONDS`; `taken:BYTES` (other processes then hold so much).
For example `malloc@3=207001;execute@5=507011;mem_info@1=taken:1000000;device_lost@90`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeAlias

from ascend_simulator.codes import Code, Refused

Action: TypeAlias = tuple[str, float]
"""A word and its value."""

PLACES: Final = ("call", "malloc", "malloc_host", "mem_info", "copy", "execute", "sync", "load")


class Faults:
    """The plan and how far it has come. Safe from any thread."""

    def __init__(
        self, lose: Callable[[], None], take: Callable[[int], None], changed: Callable[[], None]
    ) -> None:
        """What the actions do, and `changed`: what to do when the plan was.

        lose: the device is gone. take: other processes hold so many bytes of it.
        """
        self._lose = lose
        self._take = take
        self._changed = changed
        self._lock = Lock()
        self._reached: Counter[str] = Counter()
        self._plan: dict[tuple[str, int], Action] = {}

    def arm(self, plan: str) -> None:
        """Add to the plan; counts begin now. Raises ValueError for what cannot be read."""
        items = _read(plan)
        with self._lock:
            for place, number, action in items:
                self._plan[place, self._reached[place] + number] = action
        self._changed()

    def clear(self) -> None:
        """No fault is left in the plan."""
        self._plan.clear()
        self._changed()

    @property
    def is_armed(self) -> bool:
        """Whether a fault is left in the plan."""
        return bool(self._plan)

    def strike(self, place: str) -> None:
        """`place` is reached. Raises Refused where the plan says so."""
        with self._lock:
            self._reached[place] += 1
            action = self._plan.pop((place, self._reached[place]), None) if self._plan else None
        if action is not None:
            self._act(place, *action)

    def _act(self, place: str, word: str, value: float) -> None:
        if word == "slow":
            time.sleep(value)
        elif word == "taken":
            self._take(int(value))
        elif word == "lost":
            self._lose()
            raise Refused(Code.RT_LOST_HEARTBEAT, "the device is lost (injected)")
        else:
            raise Refused(int(value), f"injected at {place}")


def check_plan(plan: str) -> None:
    """Raises ValueError for what cannot be read."""
    _read(plan)


def _read(plan: str) -> list[tuple[str, int, Action]]:
    return [_read_item(item) for item in filter(None, map(str.strip, plan.split(";")))]


def _read_item(item: str) -> tuple[str, int, Action]:
    where, _, action = item.partition("=")
    place, _, number = where.partition("@")
    if place == "device_lost" and not action:
        place, action = "call", "lost"
    if place not in PLACES or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"fault '{item}': expected PLACE@N=ACTION, PLACE one of {PLACES}")
    word, _, value = action.partition(":")
    try:
        if word == "lost" and not value:
            return place, int(number), ("lost", 0)
        if word in ("slow", "taken"):
            return place, int(number), (word, float(value))
        return place, int(number), ("code", int(action))
    except ValueError:
        raise ValueError(
            f"fault '{item}': expected a code, lost, slow:SECONDS or taken:BYTES"
        ) from None
