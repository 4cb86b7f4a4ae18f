"""How streams come to run: on threads of their own, or step by step in an order that is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol

from ascend_simulator.tasks import Mark


class Steps(Protocol):
    """A stream, for whoever runs it without its thread."""

    def is_ready(self) -> bool:
        """Whether `step` can do something."""

    def step(self) -> None:
        """Do one thing; `is_ready` was true."""


class Runner(Protocol):
    """How streams come to run while the host waits for a mark."""

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Block until `mark` is passed; False after `timeout_s`."""

    def look(self) -> None:
        """The host looks whether something is done, without waiting."""


class Behind:
    """Streams run on their own threads."""

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Block until `mark` is passed; False after `timeout_s`."""
        return mark.wait(timeout_s)

    def look(self) -> None:
        """Nothing to do: the threads run anyway."""


class Seeded:
    """Streams run only while the host waits, on its thread, in an order that a number decides."""

    def __init__(self, seed: int, streams: Callable[[], Sequence[Steps]]) -> None:
        self._random = random.Random(seed)
        self._streams = streams
        self._lock = Lock()

    def wait(self, mark: Mark, timeout_s: float | None) -> bool:
        """Run streams until `mark` is passed. Time does not count: never False."""
        while not mark.done:
            with self._lock:
                if not mark.done and not self._step():
                    raise AssertionError("found streams that wait for each other, expected none")
        return True

    def look(self) -> None:
        """One step, so that a host that only looks gets on."""
        with self._lock:
            self._step()

    def _step(self) -> bool:
        ready = [stream for stream in self._streams() if stream.is_ready()]
        if ready:
            self._random.choice(ready).step()
        return bool(ready)
