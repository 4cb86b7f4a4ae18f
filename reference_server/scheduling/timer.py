"""A timer that calls a function at a given time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from reference_server.core.ports import Clock


class Timer:
    """Calls `fire` at a given time, on its own thread. Thread-safe.

    The thread starts when a time is set for the first time.
    """

    def __init__(self, name: str, clock: Clock, fire: Callable[[], None]) -> None:
        self._name = name
        self._clock = clock
        self._fire = fire
        self._changed = threading.Condition()
        self._at: int | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns` of the monotonic clock. The earliest of several set times counts.

        Later times are dropped when the timer fires; the caller sets them again.
        """
        with self._changed:
            if self._closed or (self._at is not None and self._at <= at_ns):
                return
            self._at = at_ns
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Stop the timer and wait for a running `fire` to return."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._fire()

    def _wait(self) -> bool:
        """Wait for the set time and return True; return False when the timer is closed."""
        with self._changed:
            while not self._closed:
                if self._at is None:
                    self._changed.wait()
                elif (left_ns := self._at - self._clock.monotonic_ns()) > 0:
                    self._changed.wait(left_ns / 1e9)
                else:
                    self._at = None
                    return True
        return False
