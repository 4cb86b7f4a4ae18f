"""Models that leave: they answer what they have taken, are finalized, and let go of their files."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from reference_server.repository.book import Book
from reference_server.repository.served import ServedModel

log = logging.getLogger(__name__)


class Retirement:
    """Finalizes models that serve no more, in the background. Any thread.

    `handed_over` returns when every request whose model was found before has been given to it.
    """

    def __init__(self, book: Book, handed_over: Callable[[], None]) -> None:
        self._book = book
        self._handed_over = handed_over
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def begin(self, models: Sequence[ServedModel]) -> None:
        """Finalize `models` on a thread of its own; does not wait."""
        if not models:
            return
        # A daemon: a model that hangs must not keep the process.
        thread = threading.Thread(target=self._run, args=(models,), name="retire", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _run(self, models: Sequence[ServedModel]) -> None:
        try:
            self.close(models)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def join(self) -> None:
        """Wait for all that was begun."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def close(self, models: Sequence[ServedModel]) -> None:
        """Finalize `models`, and wait for it; users, which were loaded last, come first."""
        # Whoever found a model just before it left the book still gets its answer.
        self._handed_over()
        for served in sorted(models, key=lambda served: served.order, reverse=True):
            served.scheduler.close()
            log.info("successfully unloaded '%s' version %d", served.config.name, served.version)
            self._book.unloaded(served)
            if served.files is not None:
                served.files.release()
