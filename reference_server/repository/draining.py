"""Drains models that were taken out of service: their requests are answered, then they finalize."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from reference_server.repository.versions import ServedModel, VersionRegistry

log = logging.getLogger(__name__)


class Draining:
    """Finalizes models that serve no more, in the background and side by side. Any thread.

    An ensemble is through before the models of its steps begin; for all others, one that hangs
    holds up nobody. `handed_over` returns when every request whose model was found before has been
    given to it.
    """

    def __init__(self, registry: VersionRegistry, handed_over: Callable[[], None]) -> None:
        self._registry = registry
        self._handed_over = handed_over
        self._lock = threading.Lock()
        self._leaving: dict[ServedModel, threading.Event] = {}

    @property
    def leaving(self) -> set[ServedModel]:
        """The models that are not finalized yet."""
        with self._lock:
            return set(self._leaving)

    def begin(self, models: Sequence[ServedModel]) -> None:
        """Finalize `models`, each on a thread of its own; does not wait."""
        with self._lock:
            self._leaving.update((served, threading.Event()) for served in models)
            users = [
                [gone for other, gone in self._leaving.items() if _uses(other, served)]
                for served in models
            ]
        for served, waits in zip(models, users, strict=True):
            # A daemon: a model that hangs must not keep the process.
            threading.Thread(
                target=self._drain, args=(served, waits), name="drain", daemon=True
            ).start()

    def join(self) -> None:
        """Wait for all that was begun."""
        with self._lock:
            leaving = list(self._leaving.values())
        for gone in leaving:
            gone.wait()

    def _drain(self, served: ServedModel, users: Sequence[threading.Event]) -> None:
        try:
            for gone in users:
                gone.wait()
            # Whoever found the model just before it left the registry still gets its answer.
            self._handed_over()
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
    """Whether `other` is an ensemble that may have been loaded with `served`."""
    return other.order > served.order and any(
        step.model_name == served.config.name for step in other.config.ensemble
    )
