"""The thread that polls the repositories at intervals."""

import threading

from server.support.requests import PATIENCE_S

from reference_server.core.errors import internal
from reference_server.repository.polling import RepositoryWatch


class FakeRepository:
    """A repository whose first call raises ServerError and whose second call has a defect."""

    def __init__(self):
        self.calls = 0
        self.enough = threading.Event()

    def load_all(self):
        self.calls += 1
        if self.calls == 1:
            raise internal("gone")
        if self.calls == 2:
            raise KeyError("defect")
        self.enough.set()


def test_polling_continues_after_errors(caplog):
    repository = FakeRepository()
    watch = RepositoryWatch(repository.load_all, 1e-9)
    watch.start()
    assert repository.enough.wait(PATIENCE_S)
    watch.stop()
    assert "failed to poll the repository: Internal: gone" in caplog.text
    calls = repository.calls
    watch.stop()
    assert repository.calls == calls


def test_stop_without_start():
    RepositoryWatch(FakeRepository().load_all, 1).stop()


def test_nothing_is_polled_without_an_interval():
    watch = RepositoryWatch(FakeRepository().load_all, 0)
    watch.start()
    assert "watch" not in {thread.name for thread in threading.enumerate()}
    watch.stop()
