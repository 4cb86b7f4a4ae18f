"""Whether whoever asked has given up; one object for a request and for all that is done for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

_lock = threading.Lock()  # one for all: only a cancellation and the few who watch need it


class Cancellation:
    """Set once, never reset. Any thread."""

    __slots__ = ("_watchers", "is_cancelled")

    def __init__(self) -> None:
        self.is_cancelled = False
        self._watchers: list[Callable[[], None]] | None = None

    def cancel(self) -> None:
        """Tell everyone that the result is not wanted any more. Runs what watches, once."""
        with _lock:
            if self.is_cancelled:
                return
            self.is_cancelled = True
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` when it is cancelled: now, if it is; on the thread that cancels."""
        with _lock:
            if not self.is_cancelled:
                if self._watchers is None:
                    self._watchers = []
                self._watchers.append(watcher)
                return
        watcher()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Forget `watcher`, if it has not been called."""
        with _lock:
            if self._watchers is not None and watcher in self._watchers:
                self._watchers.remove(watcher)
