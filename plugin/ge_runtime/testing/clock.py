"""A clock that moves only when a test moves it, for threads that wait with deadlines."""

from __future__ import annotations

import threading
from typing import Final

_GUARD_S: Final = 30.0
"""Real seconds. Whoever has not begun to wait by then never will."""


class ManualClock:
    """A Clock that stands still until `advance`, which wakes whoever's time has come.

    A test starts its threads, lets `until_waiting` tell when they wait, then advances: what
    happens, and in which order, does not depend on the machine. Safe from any thread.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._waits: list[tuple[threading.Condition, float]] = []  # (condition, until)
        self._changed = threading.Condition()  # guards both

    def now(self) -> float:
        """Seconds; what the test made them."""
        with self._changed:
            return self._now

    def wait(self, condition: threading.Condition, until: float) -> None:
        wait = (condition, until)
        with self._changed:
            # In one step with the check: an advance comes before it, or finds this wait.
            if until <= self._now:
                return
            self._waits.append(wait)
            self._changed.notify_all()
        try:
            condition.wait()
        finally:
            with self._changed:
                if wait in self._waits:  # notified by another than `advance`
                    self._waits.remove(wait)
                    self._changed.notify_all()

    def advance(self, seconds: float) -> None:
        """Move time on and wake every wait whose moment has come.

        Blocks until the locks of those waits' conditions are free for a moment; the caller must
        hold none of them. Raises ValueError for negative seconds: time never goes back.
        """
        if seconds < 0:
            raise ValueError(f"seconds: found {seconds}, expected 0 or more")
        with self._changed:
            self._now += seconds
            due = [condition for condition, until in self._waits if until <= self._now]
            self._waits = [wait for wait in self._waits if wait[1] > self._now]
            self._changed.notify_all()
        for condition in due:
            with condition:
                condition.notify_all()

    def until_waiting(self, count: int) -> None:
        """Block until exactly `count` waits are under way on this clock.

        A wait whose moment has come is over; one that was notified counts until its thread runs.
        Raises TimeoutError after 30 real seconds, which only a test that is wrong takes.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waits) == count, _GUARD_S):
                raise TimeoutError(f"found {len(self._waits)} wait(s), expected {count}")
