"""Waiting for what a process does."""

from __future__ import annotations

import os
import queue
import select
import threading

from server.support.requests import PATIENCE_S

from reference_server.core.health import Health


class WatchedHealth(Health):
    """A health for whose changes one can wait, one after the other."""

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
        """The next reason; empty when it is well again."""
        return self.changes.get(timeout=PATIENCE_S)


def await_threads(prefix: str) -> None:
    """Return when all threads have ended whose names begin so."""
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} lives on"


def await_end(pid: int) -> None:
    """Return when the process of that number has ended, whoever's child it is."""
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
