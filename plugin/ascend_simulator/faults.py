"""What goes wrong on purpose: a plan of faults by place and count.

A plan is `PLACE@N=ACTION` joined by semicolons, see `fault_plan`: at the N-th time from now that
PLACE is reached, ACTION happens.

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

from ascend_simulator.codes import Code, Refused
from ascend_simulator.fault_plan import Planned, read_plan


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
        self._plan: dict[tuple[str, int], Planned] = {}

    def arm(self, plan: str) -> None:
        """Add to the plan; counts begin now. Raises ValueError for what cannot be read."""
        items = read_plan(plan)
        with self._lock:
            for item in items:
                self._plan[item.place, self._reached[item.place] + item.number] = item
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
            item = self._plan.pop((place, self._reached[place]), None) if self._plan else None
        if item is not None:
            self._act(place, item.word, item.value)

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
