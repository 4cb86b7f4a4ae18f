"""Fixtures for all tests of the server."""

import faulthandler
import logging
import signal

import pytest
from support.fork_server import ForkServer, path_and

from reference_server.backends.process_host import process
from reference_server.observability import logs


@pytest.fixture(scope="session")
def model_fork_server():
    """Return the starter of model processes as forks."""
    server = ForkServer(path_and("import reference_server.backends.process_host.child"))
    yield server
    server.close()


@pytest.fixture(autouse=True, scope="module")
def forked_model_processes(model_fork_server):
    """Start model processes as forks. tests/contract/test_hosts.py starts them as a server does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "subprocess", model_fork_server)
        yield


@pytest.fixture(autouse=True)
def logging_untouched():
    """Reset the log settings, which are global, before each test."""
    root = logging.getLogger(logs.ROOT)
    root.handlers[:], root.propagate = [], True
    root.setLevel(logging.NOTSET)  # this also clears the loggers' caches of enabled levels


@pytest.fixture
def signals_as_before():
    """Restore the signal handlers after tests of the server's `main`, which replaces them."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    faulthandler.cancel_dump_traceback_later()  # `exit_after` would end the tests
    for number, handler in before.items():
        signal.signal(number, handler)
