"""A call that is made when a time has come."""

from __future__ import annotations

import threading
from collections.abc import Callable

from reference_server.core.ports import Clock


class Timer:
    """Calls `fire` when a time has come, on a thread of its own.

    The thread begins with the first time that is set, so who never sets one has none. Any thread.
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
        """Fire at `at_ns` of the monotonic clock; of several times set, the earliest counts.

        It then is forgotten: whoever still waits for a later one sets it again when it fires.
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
        """Fire no more; waits for the end of a fire that has begun."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._fire()

    def _wait(self) -> bool:
        """Return at the time that is set, whichever that is by then; False at the end."""
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
