"""Parsing of proxied traffic on a thread of its own.

The event loop only queues the bytes with their time, so that no request waits for a parser.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

INTERVAL: Final = 0.02
"""Seconds between two checks of the queue."""
MAX_NOTED: Final = 10_000
"""Largest number of queued pieces. Above it the event loop parses them, which slows traffic."""


class Tap(Protocol):
    """Reads both directions of one connection."""

    def sent(self, data: bytes) -> None:
        """Read bytes from the client."""

    def answered(self, data: bytes) -> None:
        """Read bytes from the server."""

    def closed(self, by: str) -> None:
        """Handle that "client" or "server" closed the connection."""


class Reading:
    """Calls taps later, in the original order.

    Args:
        clock: Returns nanoseconds since the start of the recording.
        count: Called with the reason if a tap raises, which is a defect.
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
        """Return the arrival time of the piece that a tap is reading."""
        return self._now

    def beside(self, tap: Tap) -> Tap:
        """Return a tap that queues its calls for `tap`."""
        return _Noting(self, tap)

    def note(self, read: Callable[[Any], None], what: object) -> None:
        """Queue the call `read(what)`. For the event loop's thread."""
        self._noted.append((read, what, self._clock()))
        if len(self._noted) > MAX_NOTED:
            self.read_noted()

    def read_noted(self) -> None:
        """Execute all queued calls."""
        with self._reading:
            for _ in range(len(self._noted)):
                read, what, self._now = self._noted.popleft()
                try:
                    read(what)
                except Exception as error:  # the thread must go on
                    self._count(f"pieces that could not be read: {error!r}")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Execute all queued calls and end the thread."""
        self._stop.set()
        self._thread.join()
        self.read_noted()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.read_noted()


class _Noting:
    """A tap that queues its calls."""

    def __init__(self, reading: Reading, tap: Tap) -> None:
        self._note = reading.note
        self._sent, self._answered, self._closed = tap.sent, tap.answered, tap.closed

    def sent(self, data: bytes) -> None:
        self._note(self._sent, data)

    def answered(self, data: bytes) -> None:
        self._note(self._answered, data)

    def closed(self, by: str) -> None:
        self._note(self._closed, by)
