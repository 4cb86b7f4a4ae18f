"""Following the files of the repositories: what changes there is loaded, and what goes unloaded."""

from __future__ import annotations

import logging
import threading

from reference_server.core.errors import ServerError
from reference_server.repository.manager import Repository

log = logging.getLogger(__name__)


class Watch:
    """Loads what is new in the repositories, every `interval_s` seconds, on a thread of its own."""

    def __init__(self, repository: Repository, interval_s: float) -> None:
        self._repository = repository
        self._interval_s = interval_s
        self._stopping = threading.Event()
        # A daemon: a model that never finishes loading must not keep the process.
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin; the first look is after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more, and wait for the look that is being taken. Harmless if never started."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._repository.load_all()
            except ServerError as error:
                log.error("failed to poll the repository: %s", error.described())
            except Exception:  # a defect of ours must not end the watching
                log.exception("failed to poll the repository")
