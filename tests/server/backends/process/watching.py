"""Functions that wait for threads, processes and changes of health."""

from __future__ import annotations

import os
import queue
import select
import threading

from server.support.requests import PATIENCE_S

from reference_server.core.health import Health


class WatchedHealth(Health):
    """A Health whose changes are put into a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: queue.SimpleQueue[str] = queue.SimpleQueue()

    def mark_unhealthy(self, instance: str, reason: str) -> None:
        super().mark_unhealthy(instance, reason)
        self.changes.put(self.reason)

    def mark_healthy(self, instance: str) -> None:
        super().mark_healthy(instance)
        self.changes.put(self.reason)

    def next(self) -> str:
        """Return the next reason; an empty text means healthy."""
        return self.changes.get(timeout=PATIENCE_S)


def await_threads(prefix: str) -> None:
    """Wait for all threads whose names start with `prefix`."""
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} lives on"


def await_end(pid: int) -> None:
    """Wait for the end of a process, which need not be a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(PATIENCE_S * 1000), f"process {pid} lives on"
    finally:
        os.close(descriptor)
