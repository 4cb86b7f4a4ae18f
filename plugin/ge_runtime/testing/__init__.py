"""Helpers for tests of code that uses ge_runtime, and for its own tests."""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["ManualClock"]


_GUARD_S: Final = 30.0
"""Real seconds until `until_waiting` fails: a thread that does not wait by then never will."""


class ManualClock:
    """A Clock that moves only by `advance`, which wakes all waits whose deadline has passed.

    A test starts its threads, blocks in `until_waiting` until they wait, then advances. So the
    order of events does not depend on the machine. Safe from any thread.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._waits: list[tuple[threading.Condition, float]] = []  # (condition, until)
        self._changed = threading.Condition()  # guards `_now` and `_waits`

    def now(self) -> float:
        """Return the seconds set by the test."""
        with self._changed:
            return self._now

    def wait(self, condition: threading.Condition, until: float) -> None:
        wait = (condition, until)
        with self._changed:
            # The check and the append are atomic, so that `advance` cannot miss this wait.
            if until <= self._now:
                return
            self._waits.append(wait)
            self._changed.notify_all()
        try:
            condition.wait()
        finally:
            with self._changed:
                if wait in self._waits:  # notified by something other than `advance`
                    self._waits.remove(wait)
                    self._changed.notify_all()

    def advance(self, seconds: float) -> None:
        """Advance time and wake every wait whose deadline has passed.

        Blocks until it has acquired the lock of each of these waits once; the caller must hold none
        of these locks.

        Args:
            seconds: The time to advance by.

        Raises:
            ValueError: `seconds` is negative.
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
        """Block until exactly `count` waits are active on this clock.

        A wait whose deadline has passed is not active. A notified wait is active until its thread
        runs.

        Raises:
            TimeoutError: 30 real seconds have passed; only a faulty test takes that long.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waits) == count, _GUARD_S):
                raise TimeoutError(f"found {len(self._waits)} wait(s), expected {count}")
