"""Asking a model whether it is ready: for a limited time, and never twice at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent import futures

log = logging.getLogger(__name__)

#: As in Triton 26.03 and later.
LIMIT_S = 5.0


class Readiness:
    """What one instance says of itself. Any thread.

    `ask` is the question; it may block, and has a thread of its own while it does. Whoever comes
    meanwhile waits for the same answer, so one that never comes costs one thread.
    """

    def __init__(self, name: str, ask: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        self._name = name
        self._ask = ask
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._answer: futures.Future[bool] | None = None

    def __call__(self) -> bool:
        """Whether it says so; False if it has not said so in time. Blocks until then."""
        with self._lock:
            answer = self._answer
            if answer is None:
                answer = self._answer = futures.Future()
                threading.Thread(
                    target=self._run, args=(answer,), name=f"{self._name} ready", daemon=True
                ).start()
        try:
            return answer.result(self._limit_s)
        except futures.TimeoutError:
            log.error("'%s' did not say within %g s whether it is ready", self._name, self._limit_s)
            return False

    def _run(self, answer: futures.Future[bool]) -> None:
        ready = False
        try:
            ready = self._ask()
        except Exception:  # a defect must not leave those waiting who come later
            log.exception("'%s' cannot be asked whether it is ready", self._name)
        finally:
            with self._lock:
                self._answer = None
            answer.set_result(ready)
