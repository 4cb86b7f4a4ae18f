"""Reads what passes the proxy in a thread of its own; the event loop only notes it, with its time.

So a request waits for no parser, neither its own nor that of another one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

INTERVAL: Final = 0.02
"""Seconds between two looks at what was noted."""
MAX_NOTED: Final = 10_000
"""Pieces that may wait. Above it the event loop reads them itself, and traffic is slower."""


class Tap(Protocol):
    """What reads both directions of one connection."""

    def sent(self, data: bytes) -> None:
        """Take bytes that the client has sent."""

    def answered(self, data: bytes) -> None:
        """Take bytes that the server has sent."""

    def closed(self, by: str) -> None:
        """Tell that `client` or `server` has closed the connection."""


class Reading:
    """Calls taps later, in the order in which they were to be called.

    clock: gives nanoseconds since the recording began.
    count: is told of what a tap fails over, which would be a defect of ours.
    """

    def __init__(self, clock: Callable[[], int], count: Callable[[str], None]) -> None:
        self._clock = clock
        self._count = count
        self._now = 0
        self._noted: deque[tuple[Callable[[Any], None], Any, int]] = deque()
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def clock(self) -> int:
        """For taps: the time at which that came which is being read."""
        return self._now

    def beside(self, tap: Tap) -> Tap:
        """A tap that notes what it is given, for `tap` to read."""
        return _Noting(self, tap)

    def note(self, read: Callable[[Any], None], what: object) -> None:
        """Have `read(what)` called in the thread; for the event loop's."""
        self._noted.append((read, what, self._clock()))
        if len(self._noted) > MAX_NOTED:
            self.read_noted()

    def read_noted(self) -> None:
        """Read all that was noted until now."""
        with self._reading:
            for _ in range(len(self._noted)):
                read, what, self._now = self._noted.popleft()
                try:
                    read(what)
                except Exception as error:  # the thread must not end without a word
                    self._count(f"pieces that could not be read: {error!r}")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, when all is read."""
        self._stop.set()
        self._thread.join()
        self.read_noted()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.read_noted()


class _Noting:
    """The tap that the proxy sees."""

    def __init__(self, reading: Reading, tap: Tap) -> None:
        self._note = reading.note
        self._sent, self._answered, self._closed = tap.sent, tap.answered, tap.closed

    def sent(self, data: bytes) -> None:
        self._note(self._sent, data)

    def answered(self, data: bytes) -> None:
        self._note(self._answered, data)

    def closed(self, by: str) -> None:
        self._note(self._closed, by)
