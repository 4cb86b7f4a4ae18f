"""Functions that block, run beside a test."""

from concurrent.futures import Future
from threading import Thread

TIMEOUT_S = 30
"""What a test waits for a thread that will never be done."""


class Beside:
    """A call in a thread of its own. A thread that hangs fails its test, and only that."""

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
        """What the call returns or raises; then its thread holds nothing of it any more."""
        self._thread.join(TIMEOUT_S)
        return self._outcome.result(0)
