"""Blocking functions in threads beside a test."""

from concurrent.futures import Future
from threading import Thread

TIMEOUT_S = 30
"""Seconds that a test waits for a thread that hangs."""


class Beside:
    """A call in its own thread. A hanging thread fails only its test."""

    def __init__(self, function, *args, **kwargs):
        self._outcome = Future()
        self._thread = Thread(target=self._run, args=(function, args, kwargs), daemon=True)
        self._thread.start()

    def _run(self, function, args, kwargs):
        try:
            self._outcome.set_result(function(*args, **kwargs))
        except BaseException as error:
            self._outcome.set_exception(error)

    def is_done(self):
        return self._outcome.done()

    def result(self):
        """Return the call's result or raise its exception; the thread keeps no reference."""
        self._thread.join(TIMEOUT_S)
        return self._outcome.result(0)
