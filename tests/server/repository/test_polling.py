"""Looking at the repositories again at intervals, whatever happens."""

import threading

from server.support.requests import PATIENCE_S

from reference_server.core.errors import internal
from reference_server.repository.polling import RepositoryWatch


class Looked:
    """A repository whose first look fails, and the next is a defect."""

    def __init__(self):
        self.looks = 0
        self.enough = threading.Event()

    def load_all(self):
        self.looks += 1
        if self.looks == 1:
            raise internal("gone")
        if self.looks == 2:
            raise KeyError("defect")
        self.enough.set()


def test_looks_go_on_whatever_happens(caplog):
    repository = Looked()
    watch = RepositoryWatch(repository.load_all, 0)
    watch.start()
    assert repository.enough.wait(PATIENCE_S)
    watch.stop()
    assert "failed to poll the repository: Internal: gone" in caplog.text
    looks = repository.looks
    watch.stop()
    assert repository.looks == looks


def test_one_that_was_never_started_can_be_stopped():
    RepositoryWatch(Looked().load_all, 1).stop()
