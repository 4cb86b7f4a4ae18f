"""Drains models that are out of service: finishes their requests, then finalizes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from reference_server.repository.versions import ServedModel, VersionRegistry

log = logging.getLogger(__name__)


class Draining:
    """Finalizes models that are out of service, in parallel background threads. Thread-safe.

    An ensemble is finalized before the models of its steps. Otherwise a model that hangs does not
    delay others. `wait_submitted` blocks until every request whose model was looked up before has
    been submitted to its scheduler.
    """

    def __init__(self, registry: VersionRegistry, wait_submitted: Callable[[], None]) -> None:
        self._registry = registry
        self._wait_submitted = wait_submitted
        self._lock = threading.Lock()
        self._leaving: dict[ServedModel, threading.Event] = {}

    @property
    def leaving(self) -> set[ServedModel]:
        """Models that are not finalized yet."""
        with self._lock:
            return set(self._leaving)

    def start(self, models: Sequence[ServedModel]) -> None:
        """Start to finalize `models`, each on its own thread. Does not block."""
        with self._lock:
            self._leaving.update((served, threading.Event()) for served in models)
            users = [
                [gone for other, gone in self._leaving.items() if _uses(other, served)]
                for served in models
            ]
        for served, waits in zip(models, users, strict=True):
            # A daemon thread: a model that hangs must not keep the process alive.
            threading.Thread(
                target=self._drain, args=(served, waits), name="drain", daemon=True
            ).start()

    def join(self) -> None:
        """Wait until all started models are finalized."""
        with self._lock:
            leaving = list(self._leaving.values())
        for gone in leaving:
            gone.wait()

    def _drain(self, served: ServedModel, users: Sequence[threading.Event]) -> None:
        try:
            for gone in users:
                gone.wait()
            # Requests that looked up the model just before it left the registry are served too.
            self._wait_submitted()
            served.scheduler.close()
            log.info("successfully unloaded '%s' version %d", served.id, served.version)
            self._registry.unloaded(served)
            if served.files is not None:
                served.files.release()
        finally:
            with self._lock:
                gone = self._leaving.pop(served)
            gone.set()


def _uses(other: ServedModel, served: ServedModel) -> bool:
    """Return whether `other` is an ensemble that may have been loaded with `served`."""
    return other.order > served.order and any(
        step.model_name == served.config.name for step in other.config.ensemble
    )
