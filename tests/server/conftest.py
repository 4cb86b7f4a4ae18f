"""Fixtures for all tests of the server."""

import faulthandler
import logging
import signal
import sys

import pytest
from support.fork_server import ForkServer

from reference_server.backends.process_host import process
from reference_server.observability import logs


@pytest.fixture(autouse=True, scope="session")
def forked_model_processes():
    """Start model processes as forks. tests/contract/test_hosts.py starts them as a server does."""
    path = "; ".join(f"sys.path.insert(0, {each!r})" for each in reversed(sys.path) if each)
    server = ForkServer(f"{path}; import reference_server.backends.process_host.child")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "subprocess", server)
        yield
    server.close()


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
